"""What a Dockerfile and a ``.dockerignore`` say, as the executor of images reads them."""

from pathlib import Path

import pytest
from build_context import BuildContext, ignored_patterns, is_ignored
from dockerfile import DockerfileError, Instruction, assignments, command, parse, substitute


def test_lines_are_joined_and_comments_left_out() -> None:
    text = '# syntax=docker/dockerfile:1\nFROM a AS b\n\nRUN one \\\n    # why\n    && two\nCMD ["c"]\n'
    found = parse(text)
    assert [(step.line, step.name, step.words) for step in found] == [
        (2, "FROM", "a AS b"),
        (4, "RUN", "one && two"),
        (7, "CMD", '["c"]'),
    ]


def test_options_are_read_apart_from_the_words() -> None:
    [step] = parse("RUN --mount=type=cache,target=/a \\\n  make --quiet all\n")
    assert step == Instruction(1, "RUN", (("mount", "type=cache,target=/a"),), "make --quiet all")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\nVOLUME /data\n", "line 2: VOLUME: executed are ARG, "),
        ("FROM a\nHEALTHCHECK NONE\n", "HEALTHCHECK"),
        ("FROM --platform=linux/arm64 a\n", "FROM --platform is not executed here"),
        ("FROM a\nCOPY --chown=1:1 b c\n", "COPY --chown is not executed here"),
        ("FROM a\nCOPY --parents b c\n", "COPY --parents"),
        ("FROM a\nRUN <<EOF\n", "here-documents"),
        ('FROM a\nRUN ["make"]\n', "lists"),
        ("FROM a\nRUN make \\\n", "line 2: the file ends within an instruction"),
        ("FROM a\nUSER\n", "words are missing"),
        ("# escape=`\nFROM a\n", "escape"),
    ],
)
def test_what_is_not_executed_is_an_error(text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=message):
        parse(text)


def test_variables_are_replaced_and_unknown_ones_refused() -> None:
    assert substitute("a/${B}:$C.", {"B": "1", "C": "2"}) == "a/1:2."
    for words in ("$D", "${B:-x}", "${D}", "a$"):
        with pytest.raises(DockerfileError, match="no value"):
            substitute(words, {"B": "1"})


def test_assignments_and_commands_have_their_form() -> None:
    assert assignments("A=1 B='2 3'") == [("A", "1"), ("B", "2 3")]
    assert command('["a", "b c"]') == ["a", "b c"]
    for words in ("A", "A 1", ""):
        with pytest.raises(DockerfileError, match="NAME=value"):
            assignments(words)
    for words in ("a b", "[1]", "[]", '"a"'):
        with pytest.raises(DockerfileError, match="list of strings"):
            command(words)


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("*\n!a\n", "a/b/c.py", False),
        ("*\n!a\n", "b", True),
        ("*\n!a\n**/__pycache__\n", "a/b/__pycache__/c.pyc", True),
        ("*\n!a/b\n", "a/b", False),
        ("*\n!a/b\n", "a/c", True),
        ("# *\n/a/\n", "a/b", True),
        ("*.py", "a/b.py", False),
        ("**/*.py", "a/b.py", True),
        ("**/*.py", "b.py", True),
        ("a?", "ab", True),
        ("a.b", "axb", False),
        ("!a\n*", "a", True),
    ],
)
def test_the_last_pattern_that_matches_decides(text: str, path: str, expected: bool) -> None:
    assert is_ignored(Path(path), ignored_patterns(text)) is expected


def test_unknown_wildcards_are_refused() -> None:
    with pytest.raises(ValueError, match="wildcards"):
        ignored_patterns("[ab]\n")


def test_a_context_copies_what_is_not_ignored_with_modes_and_links(tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "a" / "b").mkdir(parents=True)
    for name in ("a/b/code.py", "a/secret", "c"):
        (context / name).write_text(name)
    (context / "a" / "b" / "code.py").chmod(0o640)
    (context / "a" / "b").chmod(0o750)
    (context / "a" / "link").symlink_to("b")
    (context / ".dockerignore").write_text("**/secret\n.dockerignore\n")
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    BuildContext(context).copy(".", target)
    copied = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert copied == ["a", "a/b", "a/b/code.py", "a/link", "c"]
    assert (target / "a" / "link").is_symlink()
    modes = [path.stat().st_mode & 0o777 for path in (target, target / "a" / "b", target / "a" / "b" / "code.py")]
    assert modes == [0o700, 0o750, 0o640], "the destination keeps its own"
    with pytest.raises(FileNotFoundError, match="a/secret: not in the build context"):
        BuildContext(context).copy("a/secret", target)
