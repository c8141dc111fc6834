"""`detent serve`: one engine behind one port, for Detent's own clients, for HTTP, and for SQS clients.

A request, in the order in which things happen:

    turns.py            a server stands by or owns the store, takes turns with others, stops without losing an answer
    serving.py          what is served, where, and to whom: the store, its application, the port
    standby.py          what a server answers while another one owns the store, and how it waits for its turn
    protocol.py         limits on connections, before it is known who calls
    http.py             requests and answers as the parts below see them
    app.py              finds the caller, hands the request to its part, turns errors into answers
    keys.py             bearer tokens, and the file that they are in
    sigv4.py            signatures of SQS clients
    access.py           what a caller may do

The parts:

    native.py           Detent's own clients, in the protocol of `detent.remote`
    api.py              the JSON API
    operators.py        health and readiness
    metrics.py          counters for Prometheus
    metrics_state.py    what the store holds, for Prometheus
    tracing.py          spans for OpenTelemetry
    sqs/                the SQS endpoint, a package of its own
    console/            pages for browsers, a package of its own

The JSON API:

    route.py            a route: what is asked, who may ask it, what travels
    limits.py           what one request may ask for, and how lists are paged
    jsonbody.py         JSON of a request, checked against its type
    api_journals.py     the routes for journals
    api_queues.py       the routes for queues
    api_schedules.py    the routes for schedules, and what the console does with them
    api_transaction.py  the route for transactions
    api_consumers.py    the routes for consumers
    api_ledgers.py      the routes for ledgers and pins
    api_store.py        the route for the store as a whole
    api_search.py       the routes that look for messages in journals
    api_journey.py      the route for what a message came from, and what came of it
    api_series.py       the route for curves
    series.py           what queues held and did over time, in bounded memory
    models.py           bytes, durations and times in JSON
    models_journals.py  journals in JSON
    models_queues.py    queues in JSON, and a look into one
    models_schedules.py schedules in JSON
    receipts.py         which queue a receipt belongs to, so that rights can be checked
    arrow.py            messages as Arrow streams, in and out
    openapi.py          the OpenAPI document, made from the routes
"""
