from serving import metric_value as value  # noqa: F401
