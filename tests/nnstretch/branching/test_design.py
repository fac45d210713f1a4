"""Designs as files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.branching.design.design import (
    BranchDesign,
    Design,
    Entry,
    Merge,
    SegmentDesign,
    design_id,
    load_design,
    parse_merge,
    save_design,
)
from nnstretch.errors import DesignError, FileError
from nnstretch.support.image_size import size_of

TIMES = st.none() | st.floats(0, 1e9)
COUNTS = st.integers(0, 2**60)
BRANCHES = st.builds(
    BranchDesign,
    processor=st.integers(0, 9),
    blocks=st.sets(st.integers(0, 40), min_size=1).map(lambda blocks: tuple(sorted(blocks))),
    depth=st.floats(0.01, 1.0),
    width=st.floats(0.01, 1.0),
    channels=st.integers(1, 4096),
    macs=COUNTS,
    predicted_ms=TIMES,
    entry=st.sampled_from(Entry),
    has_exit=st.booleans(),
    explicit_channels=st.none() | st.lists(st.integers(1, 4096), max_size=4).map(tuple),
)
LENGTH = 41


def placed(number: int, branches: tuple[BranchDesign, ...]) -> SegmentDesign:
    """A segment of `LENGTH` blocks after `number` others."""
    first = number * LENGTH
    moved = tuple(replace(branch, blocks=tuple(first + block for block in branch.blocks)) for branch in branches)
    return SegmentDesign(first, first + LENGTH, moved)


DESIGNS = st.builds(
    Design,
    id=st.text(max_size=20),
    segments=st.lists(st.lists(BRANCHES, min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(
        lambda segments: tuple(placed(i, branches) for i, branches in enumerate(segments))
    ),
    multiple=st.integers(1, 64),
    original_macs=COUNTS,
    original_params=COUNTS,
    macs=COUNTS,
    params=COUNTS,
    predicted_ms=TIMES,
    merge=st.sampled_from(Merge),
    image_size=st.none() | st.builds(size_of, st.integers(1, 512), st.integers(1, 512)),
)


def example() -> Design:
    branches = (BranchDesign(0, (0, 1), 1.0, 0.625, 40, 100, 1.5), BranchDesign(1, (0,), 0.5, 0.5, 32, 50, None))
    segments = (SegmentDesign(0, 2, branches), SegmentDesign(2, 4, (replace(branches[0], blocks=(2, 3)),)))
    return Design(design_id(segments, 8), segments, 8, 1000, 2000, 900, 1800, 2.5)


@given(DESIGNS)
def test_designs_round_trip_through_json(design: Design) -> None:
    assert Design.from_json(design.to_json()) == design


def test_designs_round_trip_through_files(tmp_path: Path) -> None:
    path = tmp_path / "design.json"
    save_design(example(), path)
    assert load_design(path) == example()
    assert [found.name for found in tmp_path.iterdir()] == ["design.json"]


def test_ids_depend_on_structure_alone() -> None:
    design = example()
    faster = tuple(
        SegmentDesign(
            s.first,
            s.stop,
            tuple(BranchDesign(b.processor, b.blocks, b.depth, b.width, b.channels, b.macs) for b in s.branches),
        )
        for s in design.segments
    )
    assert design_id(faster, 8) == design.id
    assert design_id(design.segments, 4) != design.id
    assert design_id(design.segments[:1], 8) != design.id


def test_ids_depend_on_merge_mode_and_ends() -> None:
    design = example()
    first = replace(design.segments[0].branches[0], has_exit=True)
    changed = (SegmentDesign(0, 2, (first, design.segments[0].branches[1])), design.segments[1])
    names = {design.id, design_id(design.segments, 8, Merge.ADD), design_id(changed, 8)}
    assert len(names) == 3


def test_blocks_may_run_again_and_be_wider_than_the_original() -> None:
    design = example()
    deep = replace(design.segments[0].branches[0], blocks=(0, 1, 1), depth=1.5, width=1.25, explicit_channels=(40, 48))
    again = replace(design, segments=(SegmentDesign(0, 2, (deep,)), design.segments[1]))
    assert Design.from_json(again.to_json()) == again


def test_a_pool_is_one_processor_without_branches() -> None:
    design = example()
    whole = (SegmentDesign(0, 4, (replace(design.segments[0].branches[0], blocks=(0, 1, 2, 3)),)),)
    pooled = replace(design, segments=whole, pool=True)
    assert Design.from_json(pooled.to_json()) == pooled
    assert "pool" not in json.loads(design.to_json())
    assert design_id(whole, 8, pool=True) != design_id(whole, 8)
    for damaged in (replace(design, pool=True), replace(pooled, segments=(replace(whole[0], split=(0, 1)),))):
        with pytest.raises(DesignError, match="pool is true, but several"):
            Design.from_json(damaged.to_json())
    with pytest.raises(DesignError, match="pool is 1"):
        Design.from_json(json.dumps({**json.loads(design.to_json()), "pool": 1}))


def test_merge_modes_are_parsed() -> None:
    assert [parse_merge(merge.value) for merge in Merge] == list(Merge)
    with pytest.raises(DesignError, match=r"by 'sum'; give one of concat, concat\+1x1, add"):
        parse_merge("sum")


def test_meeting_points_and_processors() -> None:
    assert example().meeting_points == 1
    assert example().processors == (0, 1)


def test_one_line() -> None:
    design = example()
    assert str(design) == f"design {design.id}: 1 meeting point, 90.0 % of the MACs, predicted 2.50 ms"
    assert "without branches" in str(replace(design, segments=design.segments[1:], predicted_ms=None))


def broken(path: tuple[Any, ...], value: Any) -> str:
    fields = json.loads(example().to_json())
    inner = fields
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(fields)


BRANCH = ("segments", 0, "branches", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "1"),
        (("merge",), "sum"),
        (("id",), 7),
        (("multiple",), 0),
        (("macs",), -1),
        (("macs",), True),
        (("image_size",), 0),
        (("image_size",), "224"),
        (("image_size",), [224]),
        (("image_size",), [0, 8]),
        (("predicted_ms",), "fast"),
        (("predicted_ms",), float("nan")),
        (("segments",), []),
        (("segments",), {}),
        (("segments", 0), 3),
        (("segments", 0, "first"), 1),
        (("segments", 0, "stop"), 0),
        (("segments", 1, "first"), 3),
        (("segments", 0, "branches"), []),
        ((*BRANCH, "blocks"), [1, 0]),
        ((*BRANCH, "blocks"), [-1]),
        ((*BRANCH, "blocks"), [2]),
        ((*BRANCH, "blocks"), ["0"]),
        ((*BRANCH, "width"), 0),
        ((*BRANCH, "width"), 1.01),
        ((*BRANCH, "depth"), float("nan")),
        ((*BRANCH, "channels"), 0),
        ((*BRANCH, "processor"), 0.5),
        ((*BRANCH, "entry"), "none"),
        ((*BRANCH, "exit"), 1),
        ((*BRANCH, "spaces"), [8, 0]),
        ((*BRANCH, "spaces"), 8),
    ],
)
def test_damaged_designs_are_refused(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(DesignError, match="not a whole design"):
        Design.from_json(broken(path, value))


@given(st.data())
def test_designs_with_missing_fields_are_refused(data: st.DataObject) -> None:
    text = example().to_json()
    cut = data.draw(st.integers(0, len(text) - 3))
    with pytest.raises(DesignError, match="not a whole design"):
        Design.from_json(text[:cut])
    fields = json.loads(text)
    del fields[name := data.draw(st.sampled_from(sorted(fields.keys() - {"image_size"})))]
    with pytest.raises(DesignError, match=rf"not a whole design \(it has no '{name}'\); make it again"):
        Design.from_json(json.dumps(fields))


def test_designs_of_earlier_files_have_no_image_size() -> None:
    fields = json.loads(example().to_json())
    del fields["image_size"]
    assert Design.from_json(json.dumps(fields)) == example()


def test_formats_of_other_versions_are_refused() -> None:
    with pytest.raises(DesignError, match=r"format 1 is of an earlier nnstretch.*make the design again"):
        Design.from_json(broken(("format",), 1))
    with pytest.raises(DesignError, match=r"format 99.*upgrade"):
        Design.from_json(broken(("format",), 99))


def test_files_that_are_no_designs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read design"):
        load_design(tmp_path / "missing.json")
    path = tmp_path / "noise.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DesignError, match="not text"):
        load_design(path)
    path.write_text("[" * 100_000)
    with pytest.raises(DesignError, match=r"noise\.json"):
        load_design(path)
