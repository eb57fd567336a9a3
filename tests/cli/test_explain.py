"""``leconvert explain``: cause and remedy of every code that the program prints."""

from __future__ import annotations

import json

import pytest

from leconvert.cli.explain import explained
from leconvert.cli.main import main
from leconvert.dataset.findings import SOURCE_CATALOGUE, V3_CATALOGUE
from leconvert.support import errors


@pytest.mark.parametrize("code", [str(code) for code in errors.EXIT_CODES])
def test_an_exit_code_is_explained_by_the_table_of_errors(
    capsys: pytest.CaptureFixture[str], code: str
) -> None:
    assert main(["explain", code]) == 0
    said = " ".join(capsys.readouterr().out.split())
    about = errors.EXIT_CODES[int(code)]
    assert said.startswith(f"exit code {code}")
    assert about.meaning in said
    assert about.remedy in said


def test_errors_and_findings_are_explained_by_their_names_with_what_helps() -> None:
    assert explained("BatchesFailedError") == explained("8")
    assert explained("8")["errors"] == ["BatchesFailedError"]
    for code in {*SOURCE_CATALOGUE, *V3_CATALOGUE}:
        found = explained(code)["findings"]
        assert {one["dataset"] for one in found} == {
            *(["source"] if code in SOURCE_CATALOGUE else []),
            *(["v3.0"] if code in V3_CATALOGUE else []),
        }
        assert all(remedy["does"] for one in found for remedy in one["remedies"])


def test_a_finding_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "timestamps", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (of_sources, *_) = record["findings"]
    assert (record["kind"], record["code"]) == ("finding", "timestamps")
    assert [remedy["flag"] for remedy in of_sources["remedies"]] == [
        "--assume-fps",
        "--retime",
        "--accept timestamps",
    ]
