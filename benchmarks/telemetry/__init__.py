"""What telemetry costs a request."""
