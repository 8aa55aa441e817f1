"""Tool calls: what each format's grammar allows, and reading them back however the text is cut."""

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from services.gateway.schema import ChatRequest
from services.gateway.structured.calls import CallDelta, ToolCalls
from services.gateway.structured.constraint import constraint_of
from services.gateway.structured.formats import FORMATS, Hermes, Llama, Mistral, ToolFormat, recognise
from services.gateway.tokenizer import Tokenizer
from shared.grammar import compile_grammar, vocabulary
from tests.gateway.fakes import write_model_folder

ONE = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": ONE}},
    {"type": "function", "function": {"name": "get_all"}},
]
Write = Callable[[str, str], str]
WRITTEN: dict[str, tuple[Write, str, str, str]] = {
    # one call, and what goes before, between and after calls
    "hermes": (
        lambda name, given: f'\n{{"name": "{name}", "arguments": {given}}}\n',
        "<tool_call>",
        "</tool_call>\n<tool_call>",
        "</tool_call>",
    ),
    "mistral": (
        lambda name, given: f'{{"name": "{name}", "arguments": {given}}}',
        "[TOOL_CALLS][",
        ", ",
        "]",
    ),
    "llama": (lambda name, given: f'{{"name": "{name}", "parameters": {given}}}', "", "", ""),
}


def answer_of(kind: str, *calls: tuple[str, str]) -> str:
    write, before, between, after = WRITTEN[kind]
    return before + between.join(write(*call) for call in calls) + after


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder = write_model_folder(tmp_path_factory.mktemp("tools"))
    return vocabulary(folder, sorted(Tokenizer(folder).eos_ids))


def may_be(tokens: LLTokenizer, kind: str, text: str, **fields: object) -> bool:
    """Whether `text` is a whole answer."""
    request = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS} | fields
    )
    constraint = constraint_of(request.form, FORMATS[kind](), 10_000)
    assert constraint is not None
    matcher = compile_grammar(tokens, constraint.source)
    return matcher.consume_tokens(tokens.tokenize_str(text)) and matcher.is_accepting()


CALL, OTHER = ("get", '{"a": "}"}'), ("get_all", "{}")
PARALLEL = [kind for kind in FORMATS if FORMATS[kind].parallel]


@pytest.mark.parametrize("kind", FORMATS)
def test_grammars_follow_tool_choice(tokens: LLTokenizer, kind: str) -> None:
    call, other = answer_of(kind, CALL), answer_of(kind, OTHER)
    for wrong in (("get", "{}"), ("get", '{"a": 1}'), ("gone", "{}"), ("get_all", '{"a": 1}')):
        assert not may_be(tokens, kind, answer_of(kind, wrong))
    named = {"type": "function", "function": {"name": "get"}}
    allowed = {
        choice: [may_be(tokens, kind, text, tool_choice=value) for text in ("hello", "", call, other)]
        for choice, value in {"auto": "auto", "required": "required", "named": named}.items()
    }
    assert allowed == {
        "auto": [True, True, True, True],
        "required": [False, False, True, True],
        "named": [False, False, True, False],
    }
    assert may_be(tokens, kind, answer_of(kind, ("get", '{\n  "a": "x"\n}')))  # as models like to write


@pytest.mark.parametrize("kind", PARALLEL)
def test_several_calls(tokens: LLTokenizer, kind: str) -> None:
    both = answer_of(kind, CALL, OTHER, CALL)
    named = {"type": "function", "function": {"name": "get"}}
    assert may_be(tokens, kind, both) and may_be(tokens, kind, both, tool_choice="required")
    assert may_be(tokens, kind, "Let me see.\n" + both)
    assert not may_be(tokens, kind, both + " and more")
    assert not may_be(tokens, kind, both, parallel_tool_calls=False)
    assert not may_be(tokens, kind, answer_of(kind, CALL, CALL), tool_choice=named)


def test_text_of_a_prescribed_form_beside_tools(tokens: LLTokenizer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, "x"]}}}
    for text, allowed in (("1", True), ('"x"', True), ("hello", False), (answer_of("hermes", CALL), True)):
        assert may_be(tokens, "hermes", text, response_format=form) == allowed
        if text != answer_of("hermes", CALL):
            assert may_be(tokens, "hermes", text, response_format=form, tool_choice="none") == allowed


def test_an_opening_that_is_a_special_token(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    eos = sorted(Tokenizer(tmp_path).eos_ids)
    special = Tokenizer(tmp_path).special_id("<|bos|>")
    assert special is not None and Tokenizer(tmp_path).special_id("<plain added>") is None
    tokens = vocabulary(tmp_path, eos)
    request = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    )
    for kind in PARALLEL:
        constraint = constraint_of(request.form, FORMATS[kind](special), 10_000)
        assert constraint is not None
        rest = answer_of(kind, CALL).removeprefix(FORMATS[kind].opening)
        matcher = compile_grammar(tokens, constraint.source)
        ids = [*tokens.tokenize_str("hm"), special, *tokens.tokenize_str(rest)]
        assert matcher.consume_tokens(ids) and matcher.is_accepting()


# ------------------------------------------------------------ reading them back

Read = tuple[str, list[tuple[str, str]], bool]


def read(tool_format: ToolFormat, pieces: list[str]) -> Read:
    """Text, calls as (name, arguments), and whether they are complete; checks what clients rely on."""
    calls = ToolCalls(tool_format, ["get", "get_all"])
    texts: list[str] = []
    found: list[tuple[str, str]] = []
    ids: set[str] = set()
    for piece in pieces:
        text, deltas = calls.feed(piece)
        assert len({delta.number for delta in deltas}) == len(deltas)  # one per call and piece
        texts.append(text)
        for number, call_id, name, arguments in deltas:
            if name is not None:
                assert number == len(found) and call_id
                ids.add(call_id)
                found.append((name, arguments))
            else:
                assert number == len(found) - 1 and call_id is None
                found[-1] = (found[-1][0], found[-1][1] + arguments)
    texts.append(calls.flush())
    assert len(ids) == len(found)
    return "".join(texts), found, calls.complete


@cache
def formats() -> dict[str, ToolFormat]:
    return {kind: each() for kind, each in FORMATS.items()}


strings = st.text(st.sampled_from('ab{}[]"\\,:<tool_call>\n 🎉é'), max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(FORMATS)),
    before=st.sampled_from(["", "Let me see.", "a < b <tool_cal", "[TOOL_CALL"]),
    values=st.lists(
        st.dictionaries(strings, strings | st.lists(strings, max_size=2), max_size=3), max_size=3
    ),
    indent=st.sampled_from([None, 2]),
    cuts=st.lists(st.integers(0, 400)),
)
def test_every_cut_reads_the_same(
    kind: str, before: str, values: list[dict[str, object]], indent: int | None, cuts: list[int]
) -> None:
    given_ = [json.dumps(value, ensure_ascii=False, indent=indent) for value in values]
    if kind == "llama":
        given_, before = given_[:1], "" if given_ else before
    calls = [("get" if i % 2 else "get_all", each) for i, each in enumerate(given_)]
    text = before + ("\n" if before and calls else "") + (answer_of(kind, *calls) if calls else "")
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    expected = (before, calls, bool(calls))
    assert read(formats()[kind], pieces) == read(formats()[kind], list(text)) == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_an_answer_that_was_cut_is_not_complete(kind: str) -> None:
    text = answer_of(kind, CALL)
    end = text.index("}}") + 1
    for length in range(end):
        content, calls, complete = read(formats()[kind], [text[:length]])
        assert not complete and (not calls or (calls[0][0] == "get" and CALL[1].startswith(calls[0][1])))
        if kind != "llama" and length >= len(formats()[kind].opening):
            assert content == ""  # half a call is no text
    assert read(formats()[kind], [text[:end]]) == ("", [CALL], True)


def test_text_is_not_held_back_for_longer_than_it_may_be_a_call() -> None:
    calls = ToolCalls(Hermes(), ["get"])
    assert calls.feed("if a <") == ("if a", [])
    assert calls.feed("b ") == (" <b", [])
    assert calls.feed("\n\n") == ("", [])
    assert calls.feed("c") == (" \n\nc", [])
    json_text = ToolCalls(Llama(), ["get"])
    assert json_text.feed('{"name') == ("", [])
    assert json_text.feed('": "gone"}') == ('{"name": "gone"}', [])
    assert json_text.feed('{"name": "get", "parameters": ') == ('{"name": "get", "parameters": ', [])


@pytest.mark.parametrize("kind", FORMATS)
def test_json_text_may_speak_of_calls(kind: str) -> None:
    """Under a response_format a call is all of the answer, or none."""
    text = json.dumps({"text": "<tool_call> [TOOL_CALLS] " + answer_of(kind, CALL)})
    for pieces in ([text], list(text)):
        calls = ToolCalls(FORMATS[kind](), ["get"], after_text=False)
        assert "".join(calls.feed(piece)[0] for piece in pieces) + calls.flush() == text
        assert not calls.complete
    calls = ToolCalls(FORMATS[kind](), ["get"], after_text=False)
    assert "".join(calls.feed(piece)[0] for piece in answer_of(kind, CALL)) == "" and calls.complete


def test_name_and_first_arguments_travel_together() -> None:
    (delta,) = ToolCalls(Mistral(), ["get"]).feed('[TOOL_CALLS] [{"name": "get", "arguments": {"a')[1]
    assert delta == CallDelta(0, delta.id, "get", '{"a')
    assert delta.id and len(delta.id) == 9 and delta.id.isalnum()


def test_formats_are_recognised_by_the_template() -> None:
    assert recognise("{% if tools %}<tool_call>\n{'name': ...}{% endif %}") == "hermes"
    assert recognise("{% if tools %}[TOOL_CALLS] [{% endif %}") == "mistral"
    assert recognise("""{% if tools %}'{"name": name, "parameters": arguments}'{% endif %}""") == "llama"
    assert recognise("{% if tools %}[TOOL_CALLS]name[ARGS]{}{% endif %}") is None
    assert recognise("{% if tools %}<tool_call>\n<function=name>{% endif %}") is None
    assert recognise("{% if tools %}(call){% endif %}") is None
