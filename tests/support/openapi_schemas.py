from serving import assert_as_described, assert_refused_by_both, schema_of  # noqa: F401
from serving import schema_violations as faults  # noqa: F401
