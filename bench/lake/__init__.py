"""Tables, pipelines and requests on an object store: an S3 server on the loopback address, behind a counting proxy."""
