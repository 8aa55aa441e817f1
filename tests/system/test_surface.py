"""Every way in, over the real services and the embedded model: the same greedy text by each of them."""

import asyncio

import openai
import pytest
from playwright.async_api import expect

from tests.application import Application
from tests.browser import browser
from tests.deploy.commands import Terminal, run
from tests.system.reference import Reference

pytestmark = pytest.mark.system
QUESTION = "What is the capital of France?"
TOKENS = 24


async def test_one_text_by_every_way(reference: Reference) -> None:
    async with Application() as application, browser() as chromium:
        url, model = application.url, application.config.model.served_name
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            chat = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": QUESTION}],
                temperature=0,
                max_tokens=TOKENS,
            )
            text = chat.choices[0].message.content
            assert text and "Paris" in text
            whole = await client.responses.create(
                model=model, input=QUESTION, temperature=0, max_output_tokens=TOKENS
            )
            assert whole.output_text == text
            stream = await client.responses.create(
                model=model, input=QUESTION, temperature=0, max_output_tokens=TOKENS, stream=True
            )
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert "".join(deltas) == text

        tokens = (
            await application.http.post(
                "/tokenize", json={"messages": [{"role": "user", "content": QUESTION}]}
            )
        ).json()["tokens"]
        prompt = (await application.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
        made = await asyncio.to_thread(reference.generate, prompt, TOKENS)
        end = reference.tokenizer.eos_token_id
        assert text == reference.tokenizer.decode(made[: made.index(end)] if end in made else made)
        sampling = ("--temperature", "0", "--max-tokens", str(TOKENS), "--url", url)
        assert await run("complete", prompt, *sampling) == (0, f"{text}\n", "")
        async with Terminal.of("chat", *sampling) as terminal:
            await terminal.until("> ")
            terminal.type(f"{QUESTION}\n")
            await terminal.until(text.splitlines()[-1])

        page = await chromium.new_page()
        await page.goto(url)
        await expect(page.locator("#model")).to_have_text(model)
        await page.get_by_label("Temperature").fill("0")
        await page.get_by_label("Max. tokens").fill(str(TOKENS))
        await page.get_by_label("Message", exact=True).fill(QUESTION)
        await page.keyboard.press("Enter")
        await expect(page.locator("#send")).to_be_enabled(timeout=60_000)
        assert await page.locator("#turns li.assistant .said").text_content() == text
        await expect(page.locator("#state")).to_contain_text("ended")
        await expect(page.locator("#state")).to_contain_text(f"{len(tokens)} + ")
        await page.close()
        await application.settled()
