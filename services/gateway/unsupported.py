"""Fields that OpenAI's and vLLM's clients may send and that are not served yet.

Each is accepted with null or its neutral value, which changes nothing, and refused by name with any other.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

Neutral = Mapping[str, tuple[Any, ...]]
"""Field name to the values (besides null) that ask for nothing."""

GENERATION: Neutral = {
    "use_beam_search": (False,), "length_penalty": (1,), "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "truncate_prompt_tokens": (),
    "prompt_logprobs": (), "allowed_token_ids": (), "bad_words": ([],), "structured_outputs": (),
    "guided_json": (), "guided_regex": (), "guided_choice": (),
    "guided_grammar": (), "logits_processors": (),
    "return_tokens_as_token_ids": (False,), "kv_transfer_params": (), "vllm_xargs": (),
}  # fmt: skip

CHAT: Neutral = GENERATION | {
    "functions": ([],), "function_call": ("none", "auto"), "audio": (),
    "modalities": (["text"],), "prediction": (), "reasoning_effort": (), "verbosity": (), "metadata": ({},),
    "store": (False,), "service_tier": ("auto", "default"), "web_search_options": (), "prompt_cache_key": (),
    "prompt_cache_retention": (), "safety_identifier": (), "echo": (False,), "add_generation_prompt": (True,),
    "continue_final_message": (False,), "add_special_tokens": (False,), "documents": (), "chat_template": (),
    "chat_template_kwargs": ({},), "mm_processor_kwargs": (), "include_reasoning": (),
}  # fmt: skip

COMPLETION: Neutral = GENERATION | {
    "suffix": ("",), "add_special_tokens": (True,), "prompt_embeds": (),
    "response_format": ({"type": "text"},),
}  # fmt: skip

RESPONSE: Neutral = GENERATION | {
    "max_tool_calls": (), "background": (False,), "reasoning": ({},), "prompt": (),
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (), "prompt_cache_retention": (), "prompt_cache_options": ({},),
    "safety_identifier": (), "context_management": ([],), "moderation": (), "return_token_ids": (False,),
}  # fmt: skip

RESPONSE_STORED: Neutral = {"previous_response_id": (), "conversation": (), "store": (False,)}
NOTHING_STORED = "not supported, nothing is stored here: send the earlier turns in input"

RESPONSE_TEXT: Neutral = {"verbosity": ("medium",)}

RESPONSE_CALL: Neutral = {"namespace": (), "async": (False,), "async_": (False,), "caller": ()}
"""`async_`: the openai package's models call it so."""

MESSAGE: Neutral = {
    "name": (), "refusal": (), "function_call": (), "audio": (), "annotations": ([],), "reasoning": (),
    "reasoning_content": (),
}  # fmt: skip

RESPONSE_STREAM_OPTIONS: Neutral = {"include_obfuscation": (False,)}

TOKENIZE: Neutral = {"add_generation_prompt": (True,), "continue_final_message": (False,)}

STREAM_OPTIONS: Neutral = {"include_obfuscation": (False,), "continuous_usage_stats": (False,)}


def without_neutral(fields: Any, table: Neutral, reason: str = "not supported yet") -> Any:
    """`fields` without those of `table` that ask for nothing.

    Raises PydanticCustomError, with the name in its context as `param`, for one that asks for something.
    """
    if not isinstance(fields, dict):
        return fields  # of a wrong type, which the model itself refuses
    for name in fields.keys() & table.keys():
        value, neutral = fields[name], table[name]
        if value is not None and not any(_same(value, each) for each in neutral):
            accepted = " or ".join(map(repr, neutral)) or "null"
            raise PydanticCustomError(
                "not_supported",
                "{reason} (accepted: {accepted})",
                {"param": name, "reason": reason, "accepted": accepted, "got": value},
            )
    return {name: value for name, value in fields.items() if name not in table}


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and a boolean only to a boolean: in Python True == 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def in_schema(*tables: Neutral) -> Callable[[dict[str, Any]], None]:
    """For `json_schema_extra`: says of the fields of `tables` which values are taken."""

    def extend(schema: dict[str, Any]) -> None:
        fields = schema.setdefault("properties", {})
        for table in tables:
            for name, neutral in table.items():
                fields.setdefault(
                    name,
                    {
                        "enum": [None, *neutral],
                        "default": None,
                        "description": "not supported; changes nothing",
                    },
                )

    return extend
