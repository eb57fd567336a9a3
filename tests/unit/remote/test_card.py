"""The dataset card: whose text stays, and what ours says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from leconvert.remote.provenance import Provenance, render_card
from leconvert.support.errors import HubConflictError

INFO = {
    "codebase_version": "v3.0",
    "fps": 30,
    "total_episodes": 1234,
    "total_frames": 44,
    "robot_type": None,
    "features": {
        "action": {"dtype": "float32", "shape": [6]},
        "a|b": {"dtype": "video", "shape": [48, 64, 3]},
    },
}
SIZES = {"data/chunk-000/file-000.parquet": 1000, "meta/info.json": 20, "meta/stats.json": 30}


def _render(before: str | None, **changes: Any) -> str:
    arguments = {"repo_id": "tester/arm", "sizes": SIZES, "provenance": Provenance(), **changes}
    return render_card(before, INFO, **arguments)


def _head(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---")[1]))


def test_a_new_card_has_what_the_viewer_needs() -> None:
    card = _render(None)
    assert _head(card) == {
        "tags": ["LeRobot"],
        "task_categories": ["robotics"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    assert "\n# arm\n" in card
    for line in (
        "codebase version v3.0.",
        "| episodes | 1,234 |",
        "| data | 1 file, 1,000 bytes |",
        "| meta | 2 files, 50 bytes |",
        "| `action` | float32 | 6 |",
        "| `a\\|b` | video | 48 × 64 × 3 |",
    ):
        assert line in card
    assert "| robot |" not in card


def test_a_users_text_and_keys_stay_and_a_second_time_changes_nothing() -> None:
    before = (
        "---\nlicense: mit\ntags:\n- lerobot\n- mine\nextra: {deep: 1}\n---\n"
        "# My arm\n\nMy words.\n"
    )
    card = _render(before)
    head = _head(card)
    assert (head["license"], head["tags"], head["extra"]) == (
        "mit",
        ["lerobot", "mine"],
        {"deep": 1},
    )
    assert list(head)[:3] == ["license", "tags", "extra"]
    assert "# My arm\n\nMy words.\n\n<!-- leconvert:" in card
    assert _render(card) == card
    moved = card.replace("# My arm", "# Our arm") + "\nA closing word.\n"
    assert _render(moved) == moved


def test_our_part_is_written_anew_in_its_place() -> None:
    card = _render("# Mine\n") + "\nAfter.\n"
    again = _render(card, sizes={"data/chunk-000/file-000.parquet": 7})
    assert "| data | 1 file, 7 bytes |" in again
    assert "1,000 bytes" not in again
    assert again.count("<!-- leconvert") == 2
    assert again.endswith("<!-- leconvert: end -->\n\nAfter.\n")


def test_where_it_came_from_is_told_if_it_is_known() -> None:
    known = Provenance(
        "lab/arm", "v2.1", "c" * 40, {"retime": True}, {"gap": 3, "extra": 1}, ("tasks renumbered",)
    )
    card = _render(None, provenance=known)
    assert f"[lab/arm](https://huggingface.co/datasets/lab/arm/tree/{'c' * 40}) at `v2.1`" in card
    assert "- Options: `retime` = True\n" in card
    assert "- Findings: `extra`, `gap` (3 times)\n" in card
    assert "- Changed: tasks renumbered\n" in card
    card = _render(None, provenance=None)
    assert "Pushed by leconvert" in card
    assert "Convert" not in card


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("data/*/episode_*.parquet", "data/*/*.parquet"),
        ("data/chunk-000/episode_000000.parquet", "data/*/*.parquet"),
        ("custom/*.csv", "custom/*.csv"),
    ],
)
def test_a_config_that_names_old_files_is_mended(files: str, expected: str) -> None:
    before = f"---\nconfigs:\n- config_name: mine\n  data_files: {files}\n---\n"
    assert _head(_render(before))["configs"] == [{"config_name": "mine", "data_files": expected}]


def test_line_ends_stay_and_a_byte_order_mark_hides_no_head() -> None:
    card = _render("---\r\nlicense: mit\r\n---\r\n# Mine\r\n")
    assert card.count("\n") == card.count("\r\n")
    assert _render(card) == card
    card = _render("\ufeff---\nlicense: mit\n---\n# Mine\n")
    assert _head(card)["license"] == "mit"
    assert card.count("license") == 1


@pytest.mark.parametrize("head", ["a: [1", "- a\n- b"])
def test_a_head_that_is_no_yaml_is_named(head: str) -> None:
    with pytest.raises(HubConflictError, match=r"The YAML head of README.md in") as caught:
        _render(f"---\n{head}\n---\n# Mine\n")
    assert "--no-card" in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("head", "key", "kept"),
    [
        ("tags: robot", "tags", ["robot", "LeRobot"]),
        ("tags: LeRobot", "tags", "LeRobot"),
        ("tags: []", "tags", ["LeRobot"]),
        ("configs: default", "configs", "default"),
        ("configs: {config_name: mine}", "configs", {"config_name": "mine"}),
    ],
)
def test_keys_of_another_shape_are_not_taken_apart(head: str, key: str, kept: object) -> None:
    assert _head(_render(f"---\n{head}\n---\n# Mine\n"))[key] == kept
