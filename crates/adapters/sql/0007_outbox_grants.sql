-- Who may do what; all of it on this page. Nobody has INSERT, UPDATE, DELETE or TRUNCATE on anything.

SET LOCAL ROLE symphony_owner;

GRANT USAGE ON SCHEMA holdfast
    TO symphony_ingest, symphony_executor, symphony_admin, symphony_auditor, symphony_readonly;

-- symphony_ingest: enqueues.
GRANT EXECUTE ON FUNCTION
    holdfast.enqueue_payment_outbox(text, text, text, text, jsonb),
    holdfast.enqueue_payment_outbox_batch(text[], text[], text[], text[], jsonb[])
    TO symphony_ingest;

-- symphony_executor: claims, prolongs and releases a claim, completes, repairs. It sees rows only by claiming them.
GRANT EXECUTE ON FUNCTION
    holdfast.claim_outbox_batch(integer, text, integer, timestamptz),
    holdfast.extend_outbox_lease(uuid[], uuid, integer),
    holdfast.release_outbox(uuid[], uuid, integer),
    holdfast.complete_outbox_attempt(uuid, text, uuid, text, integer, text, text, jsonb, integer),
    holdfast.complete_outbox_batch(text, uuid[], uuid[], text[], integer[], text[], text[], jsonb[], integer[]),
    holdfast.repair_expired_leases(integer, text)
    TO symphony_executor;

-- symphony_admin: replays. All three who read see what waits, through the view, and what was tried.
GRANT EXECUTE ON FUNCTION holdfast.replay_outbox(uuid) TO symphony_admin;
GRANT SELECT ON holdfast.payment_outbox_pending, holdfast.payment_outbox_attempts
    TO symphony_admin, symphony_auditor, symphony_readonly;

-- symphony_auditor: also the numbers, to see that none is missing.
GRANT SELECT ON holdfast.participant_outbox_sequences TO symphony_auditor;
