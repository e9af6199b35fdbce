"""Bug reports of this field, each as a case with the right value: `test_b012_...` is case B012.

Settings that a case does not name are those of `tests.field.world`; what a case calls the run log is in
`tests.field.runs`.
"""
