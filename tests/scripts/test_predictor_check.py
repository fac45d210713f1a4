"""The picture of `scripts/studies/predictor_check.py`: complete, true, and safe to open."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from scripts.studies.predictor_check import Agreement, agreement_svg

HOSTILE = "<script>alert('&\"')</script>"


def test_agreement_has_a_dot_for_everything_and_its_bounds() -> None:
    dots = [Agreement(1.0, 1.0, HOSTILE), Agreement(2.0, 2.5, "too low"), Agreement(4.0, 3.0, "too high")]
    text = agreement_svg({"cpu:0": dots[:2], HOSTILE: dots[2:]}, 0.1)
    picture = ET.fromstring(text)  # noqa: S314 - our own text
    namespace = "{http://www.w3.org/2000/svg}"
    circles = list(picture.iter(f"{namespace}circle"))
    assert [circle.findtext(f"{namespace}title") for circle in circles] == [dot.tip for dot in dots]
    (axis,) = (e for e in picture.iter(f"{namespace}line") if e.get("class") == "axis")
    bounds = [e for e in picture.iter(f"{namespace}line") if e.get("class") == "bound"]
    assert len(bounds) == 2

    def above(circle: ET.Element) -> float:
        """How far a dot lies above the line of agreement."""
        x, y = float(circle.get("cx", "")), float(circle.get("cy", ""))
        x1, y1, x2, y2 = (float(axis.get(name, "")) for name in ("x1", "y1", "x2", "y2"))
        return y1 + (x - x1) / (x2 - x1) * (y2 - y1) - y

    exact, slow, fast = map(above, circles)
    assert abs(exact) < 0.1
    assert slow > 1.0
    assert fast < -1.0
    assert HOSTILE not in text
