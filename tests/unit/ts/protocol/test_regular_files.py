"""What stands in the place of a file is named, without waiting and without reading more than is wanted."""

import os
import socket
from pathlib import Path

import pytest

from ts.protocol.regular_files import check_regular, read_regular, read_regular_text


def made(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "file"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.close()
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["FIFO", "folder", "socket", "device"])
def test_what_is_no_regular_file_is_named_and_not_opened(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path, kind)
    for look in (check_regular, lambda path: read_regular(path, 10)):
        with pytest.raises(OSError, match=f"it is a {kind}, not a regular file") as caught:
            look(path)
        assert caught.value.filename == str(path)


def test_a_link_counts_only_where_it_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 10) == b"content"
    with pytest.raises(OSError, match="it is a symbolic link, not a regular file"):
        read_regular(tmp_path / "link", 10, follow=False)
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "link", 10)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # no byte of which is on the disk, and which does not fit into memory
    with pytest.raises(ValueError, match="larger than 10 bytes, the most that is read"):
        read_regular(path, 10)
    path.write_bytes(b"0123456789")
    assert read_regular(path, 10) == b"0123456789"


def test_a_file_without_a_size_is_read_up_to_the_limit() -> None:
    assert read_regular("/proc/self/stat", 10_000).startswith(b"%d " % os.getpid())
    with pytest.raises(ValueError, match="larger than 5 bytes"):
        read_regular("/proc/self/stat", 5)


def test_a_byte_order_mark_is_not_text_and_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffgrün".encode())
    assert read_regular_text(path, 100) == "grün"
    path.write_bytes("grün".encode("utf-16"))
    with pytest.raises(ValueError, match="the text is in UTF-16; save it in UTF-8"):
        read_regular_text(path, 100)
    path.write_bytes(b"one\ngr\xfcn")
    with pytest.raises(ValueError, match="not in UTF-8: the byte 0xfc in line 2; save it in UTF-8"):
        read_regular_text(path, 100)
