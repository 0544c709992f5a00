-- The outbox's tables.
--
--   payment_outbox_instructions   what is to be delivered: written once, never changed            (wide, insert-only)
--   payment_outbox_queue          what still waits, and who has it                                (narrow, hot)
--   payment_outbox_attempts       what was tried and what came of it: the truth                   (insert-only)
--   participant_outbox_sequences  the last number given to each participant
--   payment_outbox_pending        a view: the queue with its instructions, one row for each that waits
--
-- Why the queue is apart from its payload: a claim writes a new version of a row and a completion deletes it, so whatever
-- stands in the row is written twice and is dead twice. With the payload in it, 100,000 jobs left 76 MB of dead rows; without,
-- a tenth. The view gives the columns together again, and being a join nobody can write through it.
--
-- Why there are no foreign keys: a check would lock the instruction for each attempt, which writes to a page that never
-- changes otherwise. The functions are the only writers, and each writes both.

SET LOCAL ROLE symphony_owner;

CREATE TYPE holdfast.payment_outbox_state AS ENUM ('DISPATCHING', 'DISPATCHED', 'FAILED', 'RETRYABLE', 'ZOMBIE_REQUEUE');
COMMENT ON TYPE holdfast.payment_outbox_state IS
    'DISPATCHED and FAILED are the end. DISPATCHING is never written: that somebody has a row is its lease.';

CREATE TABLE holdfast.payment_outbox_instructions (
    outbox_id       uuid PRIMARY KEY,
    instruction_id  text NOT NULL CHECK (length(instruction_id) BETWEEN 1 AND 200),
    participant_id  text NOT NULL CHECK (length(participant_id) BETWEEN 1 AND 200),
    sequence_id     bigint NOT NULL CHECK (sequence_id > 0),
    idempotency_key text NOT NULL CHECK (length(idempotency_key) BETWEEN 1 AND 200),
    rail_type       text NOT NULL CHECK (length(rail_type) BETWEEN 1 AND 200),
    payload         jsonb NOT NULL,
    created_at      timestamptz NOT NULL,
    -- What failed and goes round again in this row.
    replay_of       uuid
);
CREATE UNIQUE INDEX payment_outbox_instructions_once
    ON holdfast.payment_outbox_instructions (participant_id, idempotency_key) WHERE replay_of IS NULL;
COMMENT ON INDEX holdfast.payment_outbox_instructions_once IS
    'One outbox row for each key of a participant. A replay carries the same key, so that the receiver knows it again.';
CREATE UNIQUE INDEX payment_outbox_instructions_one_replay
    ON holdfast.payment_outbox_instructions (replay_of) WHERE replay_of IS NOT NULL;
COMMENT ON INDEX holdfast.payment_outbox_instructions_one_replay IS 'What failed goes round again once; that may fail, and go round.';
CREATE UNIQUE INDEX payment_outbox_instructions_sequence
    ON holdfast.payment_outbox_instructions (participant_id, sequence_id);

CREATE TABLE holdfast.payment_outbox_queue (
    outbox_id        uuid PRIMARY KEY,
    next_attempt_at  timestamptz NOT NULL,
    lease_expires_at timestamptz,
    lease_token      uuid,
    -- A cache of max(attempt_no), for those who look. No CHECK bounds it: once a row had reached the bound, every claim that
    -- met it would fail, for ever. Completion and repair turn an exhausted row into FAILED instead.
    attempt_count    integer NOT NULL DEFAULT 0,
    -- How often in a row its worker was not heard of again; see claim_outbox_batch.
    crash_count      smallint NOT NULL DEFAULT 0,
    claimed_by       text,
    CONSTRAINT payment_outbox_queue_lease_is_whole CHECK (
        (claimed_by IS NULL AND lease_token IS NULL AND lease_expires_at IS NULL)
        OR (claimed_by IS NOT NULL AND lease_token IS NOT NULL AND lease_expires_at IS NOT NULL))
) WITH (
    -- Every job leaves two dead rows. The usual scale factor waits until a fifth of the table is dead, which for a long backlog
    -- is too late: claims would walk over all of it.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0,
    -- No plan here depends on statistics: see the settings of the functions.
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000
);

-- Each claim reads one of these in its own order and stops after the batch, however much waits. An OR ("not leased, or
-- expired") could not be read in order: 582 ms for a claim at a million pending, against 2. A predicate has no now(): an
-- index does not change because time goes by. The last two hold a few values for a whole batch, which makes them small.
CREATE INDEX payment_outbox_queue_claimable ON holdfast.payment_outbox_queue (next_attempt_at, outbox_id)
    WHERE lease_token IS NULL AND crash_count = 0;
CREATE INDEX payment_outbox_queue_suspect ON holdfast.payment_outbox_queue (next_attempt_at, outbox_id)
    WHERE lease_token IS NULL AND crash_count > 0;
CREATE INDEX payment_outbox_queue_expiring ON holdfast.payment_outbox_queue (lease_expires_at)
    WHERE lease_token IS NOT NULL;
CREATE INDEX payment_outbox_queue_claimed_by ON holdfast.payment_outbox_queue (claimed_by)
    WHERE claimed_by IS NOT NULL;

CREATE TABLE holdfast.payment_outbox_attempts (
    attempt_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox_id   uuid NOT NULL,
    attempt_no  integer NOT NULL CHECK (attempt_no > 0),
    latency_ms  integer CHECK (latency_ms >= 0),
    lease_token uuid NOT NULL,
    at          timestamptz NOT NULL,
    state       holdfast.payment_outbox_state NOT NULL CHECK (state <> 'DISPATCHING'),
    worker_id   text NOT NULL,
    error_code  text,
    error_text  text,
    response    jsonb,
    UNIQUE (outbox_id, attempt_no)
);
CREATE UNIQUE INDEX payment_outbox_attempts_one_terminal_per_outbox
    ON holdfast.payment_outbox_attempts (outbox_id) WHERE state IN ('DISPATCHED', 'FAILED');
COMMENT ON INDEX holdfast.payment_outbox_attempts_one_terminal_per_outbox IS
    'An outbox row ends once: it was dispatched or it failed, never both, never twice. The functions see to it under the row''s'
    ' lock; this is the backstop behind them. A 23505 that names it is to be logged as that; any other 23505 is an alarm.';

CREATE TABLE holdfast.participant_outbox_sequences (
    participant_id   text PRIMARY KEY,
    last_sequence_id bigint NOT NULL CHECK (last_sequence_id >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
COMMENT ON TABLE holdfast.participant_outbox_sequences IS
    'A number is taken in the transaction that enqueues, and is given back if that rolls back: no gaps. Those who enqueue for'
    ' one participant therefore wait for one another until they commit.';

-- Grows with each claim, whatever row it takes, so of two deliveries of one instruction the later has the higher number.
CREATE SEQUENCE holdfast.payment_outbox_epochs AS bigint;

-- Left: a missing instruction would be a fault, and a fault must be seen. And who does not ask for the instruction's columns
-- does not pay for the join.
CREATE VIEW holdfast.payment_outbox_pending AS
SELECT queue.outbox_id, instruction.instruction_id, instruction.participant_id, instruction.sequence_id,
       instruction.idempotency_key, instruction.rail_type, instruction.payload, queue.attempt_count,
       instruction.created_at, queue.next_attempt_at, queue.claimed_by, queue.lease_token, queue.lease_expires_at,
       queue.crash_count, instruction.replay_of
  FROM holdfast.payment_outbox_queue AS queue
  LEFT JOIN holdfast.payment_outbox_instructions AS instruction USING (outbox_id);
COMMENT ON VIEW holdfast.payment_outbox_pending IS 'All that is not yet dispatched or failed, and who has it.';

CREATE FUNCTION holdfast.refuse_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, holdfast, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'P0001', HINT = 'what happened stays; write a new row through the functions';
END
$$;
REVOKE ALL ON FUNCTION holdfast.refuse_change() FROM PUBLIC;

-- For each statement, so that one which would change no row is refused too.
CREATE TRIGGER payment_outbox_attempts_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON holdfast.payment_outbox_attempts
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change();
CREATE TRIGGER payment_outbox_instructions_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON holdfast.payment_outbox_instructions
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change();
-- Always: not even a session that plays a replica gets by.
ALTER TABLE holdfast.payment_outbox_attempts ENABLE ALWAYS TRIGGER payment_outbox_attempts_append_only;
ALTER TABLE holdfast.payment_outbox_instructions ENABLE ALWAYS TRIGGER payment_outbox_instructions_append_only;

-- Identifiers that grow with time: neighbours in time are neighbours in every index. (Version 7; PostgreSQL 18 has its own.)
-- Without a search_path of its own, so that it is written into the statement that calls it; every name is whole.
CREATE FUNCTION holdfast.time_ordered_uuid() RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT pg_catalog.encode(pg_catalog.set_bit(pg_catalog.set_bit(pg_catalog.overlay(
               pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
               pg_catalog.substring(pg_catalog.int8send(pg_catalog.floor(
                   EXTRACT(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8), 3),
               1, 6), 52, 1), 53, 1), 'hex')::pg_catalog.uuid
$$;
REVOKE ALL ON FUNCTION holdfast.time_ordered_uuid() FROM PUBLIC;
