"""The base of all request models."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """No conversions (`"1"` is no integer), no unknown fields, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
