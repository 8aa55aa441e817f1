"""What every service speaks: messages, subjects, the bus, config, tracing, metrics, clock."""
