"""Result files, also those that are broken or were cut off."""

from pathlib import Path

import msgspec
import pytest

from loadgen.bench.record import End, Run, RunError, RunFile, find, read
from tests.loadgen.bench.records import answered, failed, run


def written(path: Path, finished: bool = True) -> Run:
    wanted = run([answered(0, 0.0, [1.0, 2.0], chunk_tokens=[1, 1]), failed(1, 1.0, "429", detail="é\n")])
    with RunFile(path, wanted.header) as file:
        for record in reversed(wanted.records):  # in the order in which they ended
            file.add(record)
        if finished:
            file.finish(End(10.0))
    return wanted


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    assert msgspec.json.encode(written(path)) == msgspec.json.encode(read(path))


def test_a_killed_run_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    written(path, finished=False)
    path.write_bytes(path.read_bytes()[:-20])  # in the middle of a line
    found = read(path)
    assert [record.index for record in found.records] == [1]
    assert found.end.aborted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no header"),
        ('{"record": 5}\n{}\n', r":1: not a line of a run"),
        ("nonsense\n{}\n", r":1: not a line of a run"),
    ],
)
def test_what_is_no_result(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(RunError, match=message):
        read(path)


def test_a_format_of_the_future(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    header = msgspec.structs.replace(run([]).header, format=99)
    with RunFile(path, header):
        pass
    with pytest.raises(RunError, match="format 99"):
        read(path)


def test_folders_and_files(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl")
    written(tmp_path / "b.jsonl")
    (tmp_path / "benchmark.yaml").write_text("")
    assert [path.name for path in find([tmp_path, tmp_path / "b.jsonl"])] == ["a.jsonl", "b.jsonl", "b.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="no result"):
        find([tmp_path / "empty"])
    with pytest.raises(RunError, match="cannot be written"):
        RunFile(tmp_path / "a.jsonl" / "b.jsonl", run([]).header)
