"""Tags as labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detent.queue.operations import LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX
from detent.server.sqs.labels import TAG_KEY_MAX, TAG_VALUE_MAX, tag_label, tag_name, tags_of

TEXT = st.characters(exclude_categories=["Cs", "Cc"])
KEYS = st.one_of(
    st.text(TEXT, min_size=1, max_size=TAG_KEY_MAX),
    st.text(st.sampled_from("日🎉é"), min_size=TAG_KEY_MAX, max_size=TAG_KEY_MAX),
)


@given(st.dictionaries(KEYS, st.text(TEXT, max_size=TAG_VALUE_MAX), max_size=5))
def test_tags_of_any_alphabet_fit_into_labels_and_come_back(tags: dict[str, str]) -> None:
    labels = dict(tag_label(key, value) for key, value in tags.items())
    assert tags_of({"sqs:DelaySeconds": "1", "other": "label", "tag#other": "label", **labels}) == tags
    assert [tag_name(key) for key in tags] == list(labels)
    for name, value in labels.items():
        assert len(name.encode()) <= LABEL_NAME_BYTES_MAX
        assert len(value.encode()) <= LABEL_VALUE_BYTES_MAX


def test_the_longest_tag_of_all_fits() -> None:
    name, value = tag_label('"' + "🎉" * (TAG_KEY_MAX - 1), '"' * TAG_VALUE_MAX)
    assert len(name.encode()) <= LABEL_NAME_BYTES_MAX
    assert len(value.encode()) <= LABEL_VALUE_BYTES_MAX
