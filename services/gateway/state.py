"""What a gateway says of itself."""

from typing import Literal

from pydantic import BaseModel, Field


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    status: Literal["ready", "not ready"] = Field(description="whether requests are taken")
    reason: str | None = Field(default=None, description="why requests would be refused")


class Version(BaseModel):
    version: str = Field(description="of Skipjoin, major.minor.patch")
