"""How processes of a bench and the bench speak."""

from __future__ import annotations

import io
import json

import pytest

from ps_lab.bench import turns


def test_an_answer_is_found_behind_a_warning_that_ended_without_a_line_break() -> None:
    assert turns.parse_answer(f'careful!{turns.MARK}{{"ready": true}}') == {"ready": True}


@pytest.mark.parametrize("line", ["", "ready", turns.MARK, f"{turns.MARK}no json", f"{turns.MARK}[1]"])
def test_other_output_is_no_answer(line: str) -> None:
    assert turns.parse_answer(line) is None


def test_a_process_says_that_it_is_ready_and_then_answers_each_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = json.dumps({"rank": 3})
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{configuration}\n{turns.TURN}\n{turns.TURN}\n"))
    assert turns.read_configuration() == {"rank": 3}
    done: list[int] = []
    turns.take_turns(lambda: done.append(1))
    ready, *answers = map(turns.parse_answer, capsys.readouterr().out.splitlines())
    assert ready == {"ready": True}
    assert len(answers) == len(done) == 2
    for answer in answers:
        assert answer is not None
        assert answer["begin_s"] <= answer["end_s"]
