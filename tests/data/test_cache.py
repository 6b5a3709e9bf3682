"""What follows from a text is kept once, for all runs."""

from lib.data.cache import cached


def test_what_is_kept_lies_where_a_link_leads_and_is_made_once(tmp_path, monkeypatch):
    """The folder of a trial has `data/` as a link, to one that a fresh clone does not have yet."""
    monkeypatch.setattr("lib.data.cache.output_root", lambda: tmp_path / "trial")
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "data").symlink_to(tmp_path / "data")
    made = []

    def make(folder):
        made.append(folder)
        (folder / "items").write_text("1", "utf-8")
        return {"n": 1}

    for _ in range(2):
        folder, index = cached("suites", "a-text", ["a text", 1], make)
        assert folder.parent == tmp_path / "data" / "suites"
        assert index == {"n": 1}
    assert made == [folder]
    (folder / "items").write_text("2", "utf-8")  # no longer as it was written
    cached("suites", "a-text", ["a text", 1], make)
    assert made == [folder, folder]
