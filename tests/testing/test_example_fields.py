"""The kit's own examples of a record for each answer kind."""

from seqpipe.testing.kinds import StructuredChecks

FIELDS = {
    "mood": {"per": "text", "type": "label"},
    "deprel": {"per": "pair", "type": "label", "outside": "none"},
    "distance": {"per": "pair", "type": "number"},
}


def test_pairs_of_words_have_a_label_or_a_value_by_the_type_of_their_field() -> None:
    record = StructuredChecks.example_fields({"fields": FIELDS}, {"words": ["a", "b", "c"]}, 1)
    assert record["mood"] == "label 2"
    assert record["deprel"] == [{"from": 0, "to": 1, "label": "label 1"}, {"from": 2, "to": 0, "label": "label 0"}]
    assert record["distance"] == [{"from": 0, "to": 1, "value": -1.0}, {"from": 2, "to": 0, "value": 0.0}]
