"""The style guide's rules that a machine can check (CONTRIBUTING.md, Plain English)."""

import plain_english


def test_the_prose_keeps_to_the_style_guide() -> None:
    found = [str(finding) for path in plain_english.python_files() for finding in plain_english.findings(path)]
    assert not found, "\n".join(found)


def test_fragments_and_riddles_are_found(tmp_path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Say what is done."""\n\ndef f(a, b):\n    """Return which.\n\n    Args:\n        a: of the run.\n'
        '        b: Run folder.\n    """\n    # The same to the bit.\n'
    )
    assert plain_english.entries(path) == 2
    assert [finding.rule for finding in plain_english.findings(path)] == [
        "first line 'Say '",
        "first line 'Return which'",
        "fragment",
        "phrase 'to the bit'",
    ]
