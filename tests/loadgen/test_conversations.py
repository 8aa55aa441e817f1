"""Replayed conversations: turns follow each other, and reuse saves what it promises."""

import json
from pathlib import Path

import pytest

from deploy.cli import main
from loadgen.workload.traces import TraceError, parse_conversations

TABLE = "conv_id,turn,context_len,new_prompt_len,output_len\n"


def table(conversations: int, turns: int) -> str:
    rows: list[str] = []
    for number in range(conversations):
        context = 0
        for turn in range(turns):
            said, answer = 200 + 37 * (number % 5), 60 + 50 * ((number + turn) % 4)
            rows.append(f"{number},{turn},{context + said},{said},{answer}\n")
            context += said + answer
    return TABLE + "".join(rows)


def simulate(folder: Path, text: str, *options: str) -> list[dict[str, float]]:
    trace, out = folder / "turns.csv", folder / "out.json"
    trace.write_text(text)
    assert main(["simulate", "conversations", str(trace), "--json", str(out), *options]) == 0
    return json.loads(out.read_text())["rows"]


@pytest.mark.parametrize("policy", ["skip-join", "markov-priority"])
def test_reuse_halves_what_is_swapped_out_and_computes_only_what_is_new(tmp_path: Path, policy: str) -> None:
    """FastSwitch (arXiv:2411.18424) measured 53 % fewer blocks swapped out."""
    text = table(60, 4)
    without, copies, prefixes, both = simulate(
        tmp_path, text, "--policy", policy, "--rate", "2", "--think", "3"
    )
    assert without["swapped_out"] > 1000, "the load must swap"
    assert copies["swapped_out"] <= 0.5 * without["swapped_out"]
    assert both["swapped_out"] < prefixes["swapped_out"]
    assert both["computed"] < 0.5 * without["computed"]


def test_without_pressure_each_token_is_computed_once_and_swapped_out_once(tmp_path: Path) -> None:
    text = table(3, 4)
    rows = simulate(tmp_path, text, "--policy", "fcfs", "--rate", "0.01", "--think", "1")
    said, answers = (sum(int(line.split(",")[column]) for line in text.splitlines()[1:]) for column in (3, 4))
    without, _, _, both = rows
    assert without["swapped_out"] == 0
    # Of each turn the last token's KV is not written, and up to a block at its end is not full.
    assert said + answers - 12 <= both["computed"] <= said + answers + 9 * 16
    assert both["swapped_out"] <= (said + answers) / 16


def test_turns_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    text = TABLE + "0,0,100,100,10\n0,1,50110,50000,10\n0,2,50220,100,10\n1,0,100,100,10\n"
    assert {row["skipped"] for row in simulate(tmp_path, text, "--policy", "fcfs")} == {2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input_len,output_len\n1,2\n", "t:2: no column conv_id"),
        (TABLE + "0,0,10,x,5\n", "t:2: new_prompt_len is 'x'"),
        (TABLE + "0,0,10,0,5\n", "t: no conversations"),
    ],
)
def test_tables_that_hold_no_conversations(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse_conversations(text, "t")


def test_empty_turns_are_left_out() -> None:
    text = TABLE + "7,0,10,10,5\n7,1,15,0,5\n8,0,3,3,0\n7,2,30,10,6\n"
    assert [[(turn.said, turn.answer) for turn in talk] for talk in parse_conversations(text, "t")] == [
        [(10, 5), (10, 6)]
    ]
