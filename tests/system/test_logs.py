"""What all services log of requests in the whole application: their steps, and nothing of their prompts."""

import logging

import pytest

from tests.application import Application

SECRET = "xyzzyplugh"


async def test_no_service_logs_text_of_a_prompt(caplog: pytest.LogCaptureFixture) -> None:
    """On any level, also where a job is aborted, refused or recomputed in a new epoch."""
    caplog.set_level(logging.DEBUG)
    async with Application(logging={"level": "DEBUG"}, scheduler={"max_batch_size": 1}) as app:
        body = app.completion(f"Say {SECRET} twice", 30, stream=True, request_id="followed")
        async with app.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            app.scheduler._begin_epoch("test")
            async for _ in lines:
                pass
        async with app.http.stream("POST", "/v1/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        too_long = await app.http.post("/v1/completions", json=app.completion(f"{SECRET} " * 3000, 1))
        assert too_long.status_code == 400
        await app.settled()
    said = [f"{record.getMessage()} {getattr(record, 'fields', '')}" for record in caplog.records]
    assert any("epoch" in line for line in said) and any("'followed'" in line for line in said)
    assert [line for line in said if SECRET in line] == []
    steps = [line.split(" {")[0] for line in said if line.startswith("request ") and "followed" in line]
    full = ["request received", "request accepted", "request first token"]
    assert steps == [*full, "request finished", *full, "request aborted"]
