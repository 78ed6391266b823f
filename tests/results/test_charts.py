# SPDX-License-Identifier: MIT OR Apache-2.0
"""The charts and files of the pages: places of dots, rows of a table, and files that are not current."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree

import charts
import pytest

SVG = "{http://www.w3.org/2000/svg}"


def read_dots(parts):
    picture = ElementTree.fromstring(charts.render_svg(400, 400, "a <label>", parts))
    return {
        dot.find(f"{SVG}title").text: (float(dot.get("cx")), float(dot.get("cy")))
        for dot in picture.iter(f"{SVG}circle")
    }


def test_equal_values_lie_on_the_diagonal():
    points = [(0.5, 0.5, "red", "small"), (40.0, 40.0, "red", "large"), (2.0, 1.0, "red", "less & less")]
    dots = read_dots(charts.draw_diagonal(points, 50, 20, 300, ("measured", "dry run")))
    distances = {name: (x - 50) - (20 + 300 - y) for name, (x, y) in dots.items()}
    assert distances["small"] == pytest.approx(0, abs=0.11) and distances["large"] == pytest.approx(0, abs=0.11)
    # A dry run with less memory than the real GPU lies below the diagonal.
    assert distances["less & less"] > 20
    assert dots["small"][0] < dots["less & less"][0] < dots["large"][0]


def test_cells_do_not_break_a_table():
    table = charts.render_table(["a", "b"], [["x|y", 1], ["", 2]])
    assert [len(re.findall(r"\|", line)) for line in table.splitlines()] == [3] * 4
    text = charts.render_csv(["a", "b"], [["x|y, z", 1]])
    assert list(csv.reader(io.StringIO(text))) == [["a", "b"], ["x|y, z", "1"]]


def test_files_that_are_not_current_are_listed(tmp_path):
    files = {tmp_path / "a.md": "a", tmp_path / "b.csv": "b", tmp_path / "c.svg": "c"}
    charts.write_files(files)
    assert charts.list_differences(files, tmp_path) == []
    (tmp_path / "a.md").write_text("edited")
    (tmp_path / "c.svg").unlink()
    assert charts.list_differences(files, tmp_path) == ["a.md", "c.svg"]
