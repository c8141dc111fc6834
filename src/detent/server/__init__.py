"""`detent serve`: one engine behind one port, for Detent's own clients, for HTTP, and for SQS clients."""
