"""docs/known-faults.md: every row is there, and every test that it names exists."""

import re

from conftest import ROOT

PAGE = ROOT / "docs/known-faults.md"
_OF_T = [str(n) for n in range(1, 41)]
_OF_C = (
    "1 9 10 11 98 100 102 103 104 107 108 109 111 112 113 115 116 117 118 119 121 124 125 126 128"
).split()
_OF_B = (
    "2 3 14 15 57 58 60 62 64 66 67 68 69 71 73 75 76 78 80 81 83 84 85 87 88 89 91 93 94 95 96"
).split()


def rows() -> dict[str, list[tuple[str, str]]]:
    """Heading of the first column -> (number, test)."""
    tables: dict[str, list[tuple[str, str]]] = {}
    table: list[tuple[str, str]] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ("T", "C", "B"):
            table = tables.setdefault(cells[0], [])
        elif cells[0].isdigit():
            table.append((cells[0], cells[-1]))
    return tables


def test_every_row_is_there_in_order():
    tables = rows()
    assert [number for number, _ in tables["T"]] == _OF_T
    assert [number for number, _ in tables["C"]] == _OF_C
    assert [number for number, _ in tables["B"]] == _OF_B


def test_every_named_test_exists():
    in_cpp = {
        f"{suite}.{name}"
        for file in ROOT.glob("opfuse/**/*_test.cc")
        for suite, name in re.findall(r"TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", file.read_text())
    }
    missing = []
    for number, test in [row for table in rows().values() for row in table]:
        file, _, name = test.partition("::")
        if not name:
            if test not in in_cpp:
                missing.append((number, test))
            continue
        source = (ROOT / "test" / f"{file}.py").read_text()
        script, _, case = name.partition("-")
        if case:
            source = (ROOT / "test/scripts/legality" / f"{script}.py").read_text()
        if not re.search(rf"(?m)^(def|class) {case or name}\b.*", source):
            missing.append((number, test))
    assert not missing
