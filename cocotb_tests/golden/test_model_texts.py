"""The shipped texts, and texts from files."""

import pytest

from golden.errors import UserError
from golden.model import load_tokenizer, texts


def test_names():
    assert texts.names() == ["legal", "prose", "tech"] and texts.CALIBRATION == "code"
    assert texts.TUNING == ("code", "manual")


def test_each_text_fills_the_longest_context():
    tokenizer = load_tokenizer()
    for name in [*texts.names(), *texts.TUNING]:
        assert 8193 <= len(tokenizer.encode(texts.read(name))) <= 12000


def test_texts_begin_as_their_sources_do():
    assert texts.read("legal").startswith("GNU GENERAL PUBLIC LICENSE Version 3, 29 June 2007\n\nCopyright (C) 2007")
    assert "GNU Free Documentation License Version 1.3" in texts.read("legal")
    assert texts.read("prose").startswith("Anarchism is a political theory which aims to create anarchy")
    assert texts.read("tech").startswith("6.2. aptitude, apt-get, and apt Commands\n\nAPT is a vast project")
    assert texts.read("code").startswith("# Author: Steven J. Bethard")


def test_every_file_has_its_source_and_licence_named():
    page = (texts.FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.name}`" in page for path in texts.FOLDER.glob("*.txt"))


def test_reads_a_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("é\n", encoding="utf-8")
    assert texts.read(path) == texts.read(str(path)) == "é\n"


def test_rejects_what_is_no_text(tmp_path):
    (tmp_path / "binary").write_bytes(b"ab\xff\x00")
    with pytest.raises(UserError, match=r"^the file .*binary is not UTF-8 text: byte 2 cannot be decoded$"):
        texts.read(tmp_path / "binary")
    with pytest.raises(UserError) as caught:
        texts.read("novel")
    assert str(caught.value) == (
        "no text 'novel': it is none of legal, prose, tech, code, manual, and no readable file "
        "(No such file or directory)"
    )
    with pytest.raises(UserError, match=r"^no text '(long ){8}\.\.\.': it is none of .* \(File name too long\)$"):
        texts.read("long " * 1000)
    with pytest.raises(UserError, match="null"):
        texts.read("a\0b")
