"""Traces as their publishers write them, and what is wrong in broken ones."""

from pathlib import Path

import pytest

from loadgen.workload.traces import TraceError, parse, read

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 01:00:01.017335+01:00,2399,6
2024-05-10T00:00:02Z,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
120.5,GPT-4,417,276,693,API log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type
5,7,1.5,ChatGPT,472,18,Conversation log
45,7,9.25,ChatGPT,1087,230,Conversation log
"""
RELATIVE = "timestamp_s,input_len,output_len\n5.0,374,44\n9.25,396,109\n"
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}

{"timestamp": 3052, "input_length": 7322, "output_length": 490, "hash_ids": [0, 2]}
"""
TABLE = "input_len,output_len\n74,918\n"
TURNS = "conv_id,turn,context_len,new_prompt_len,output_len\n0,0,74,74,918\n0,1,1100,108,20\n"


def rows(text: str) -> list[tuple[float, int, int]]:
    return [(round(item.arrival, 4), item.prompt, item.output) for item in parse(text, "t").requests]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE, [(0, 374, 44), (4.3146, 396, 109)]),
        (AZURE_2024, [(0, 2162, 5), (1.0074, 2399, 6), (1.9901, 76, 15)]),
        (BURSTGPT, [(0, 472, 18), (40, 1087, 230), (115.5, 417, 276)]),
        (BURSTGPT.replace("\n", "\r\n"), [(0, 472, 18), (40, 1087, 230), (115.5, 417, 276)]),
        (BURSTGPT_SESSIONS, [(0, 472, 18), (40, 1087, 230)]),
        (RELATIVE, [(0, 374, 44), (4.25, 396, 109)]),
        (RELATIVE.replace("\n", "\r\n"), [(0, 374, 44), (4.25, 396, 109)]),
        (MOONCAKE, [(0, 6758, 500), (3.052, 7322, 490)]),
        (TABLE, [(0, 74, 918)]),
        (TURNS, [(0, 74, 918), (0, 1100, 20)]),
        (" Timestamp_s , INPUT_LEN,output_len\n0,1,2\n\n", [(0, 1, 2)]),
    ],
)
def test_formats(text: str, expected: list[tuple[float, int, int]]) -> None:
    assert rows(text) == expected


def test_order_and_empty_rows() -> None:
    trace = parse("timestamp_s,input_len,output_len\n7,3,3\n2,1,1\n1,0,5\n3,5,0\n", "t")
    assert [(item.arrival, item.prompt) for item in trace.requests] == [(0, 1), (5, 3)]
    assert trace.skipped == 2
    assert [item.arrival for item in trace.at_speed(2.0)] == [0, 2.5]
    assert trace.lengths().tolist() == [[1, 1], [3, 3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"t:1: no column of prompt lengths"),
        ("input_len,output_len\n1,2\n1\n", r"t:3: 1 cells, the header has 2"),
        ("input_len,output_len\n1,x\n", r"t:2: output_len is 'x'"),
        ("input_len,output_len\n-1,3\n", r"t:2: input_len is '-1'"),
        ("input_len,other\n1,3\n", r"t:2: none of output_len"),
        ("timestamp_s,input_len,output_len\nsoon,1,1\n", r"t:2: timestamp_s is 'soon', neither"),
        ("timestamp_s,input_len,output_len\nnan,1,1\n", r"t:2: timestamp_s is 'nan', not a time"),
        ("timestamp_s,input_len,output_len\n,1,1\n", r"t:2: timestamp_s is '', neither"),
        ("Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,3.5,1\n", r"t:2: request tokens is '3.5'"),
        ("Timestamp,Model,Request tokens\n5,GPT-4,3\n", r"t:2: none of output_len"),
        ("input_len,output_len\r\n1,2\r\n1,\r\n", r"t:3: output_len is ''"),
        ('{"timestamp": 0, "input_length": null, "output_length": 1}\n', r"t:1: input_length is None"),
        ('{"timestamp": 0}\n', r"t:1: none of input_len"),
        ("[1, 2]\n", r"t:1: no column"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{oops\n', r"t:2: not JSON"),
        ("input_len,output_len\n0,0\n", r"t: no requests"),
        ("", r"t:1: no column"),
    ],
)
def test_errors_name_file_and_line(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse(text, "t")


def test_a_byte_order_mark_and_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(b"\xef\xbb\xbf" + TABLE.encode())
    assert read(file).requests[0].prompt == 74
    with pytest.raises(TraceError, match=r"missing\.csv: cannot be read"):
        read(tmp_path / "missing.csv")
