"""What benchmarks/families.py makes of verdicts, and the page that it has written."""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers"),
]
FAMILIES, TRIED = 27, ("TP 2", "TP 4", "TP + SP 2", "generate", "EP")
WITH_EXPERTS = {"deepseek-v2", "deepseek-v3", "gpt-oss", "mixtral", "qwen-moe"}
SENSELESS = {
    (name, "generate") for name in ("bert", "clip", "deberta", "modernbert", "roberta", "vit")
}


def test_the_page_says_what_was_tried() -> None:
    from benchmarks.families import PAGE, read, share_right

    cells = {key: each for key, each in read(PAGE.read_text()).items() if key[1] in TRIED}
    assert len(cells) == FAMILIES * len(TRIED)
    assert {key for key, verdict in cells.items() if verdict != "right"} == SENSELESS | {
        (name, "EP") for name, _ in cells if name not in WITH_EXPERTS
    }
    assert all(cells[key] == "–" for key in cells if cells[key] != "right")
    assert share_right(cells.values()) > 0.9


def test_a_page_is_read_as_it_was_written() -> None:
    from benchmarks.families import page, read

    cells = {("llama", "TP 2"): "right", ("mixtral", "TP 2"): "refused: it has experts"}
    text = page(cells)
    assert "- Mixtral, TP 2: it has experts" in text
    assert read(text)["llama", "TP 2"] == "right"
    assert read(text)["mixtral", "TP 2"] == "refused: it has experts"
    assert read(text)["bart", "TP 2"] == "not tried"


def test_what_was_not_tried_is_no_part_of_the_share() -> None:
    from benchmarks.families import share_right

    assert share_right(["right", "refused: x", "not tried", "–"]) == 0.5
    assert share_right([]) == 0.0
