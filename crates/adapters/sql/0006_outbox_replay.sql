-- For an operator: what has failed goes round again.

SET LOCAL ROLE symphony_owner;

-- Enqueues what FAILED once more, as a new row that refers to it, with the same idempotency key and payload, the next number of its
-- participant, and attempts from 1. The failure stays on record. Asked again, it gives back the row that it made.
-- P7003: it has not failed. P0002: there is no such row.
CREATE FUNCTION holdfast.replay_outbox(outbox_id uuid)
RETURNS holdfast.payment_outbox_enqueued
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    failed   holdfast.payment_outbox_instructions;
    replay   holdfast.payment_outbox_instructions;
    ended_as text;
    number   bigint;
    new_id   uuid;
BEGIN
    SELECT known.* INTO failed FROM holdfast.payment_outbox_instructions AS known
     WHERE known.outbox_id = replay_outbox.outbox_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no outbox row %', replay_outbox.outbox_id USING ERRCODE = 'P0002';
    END IF;
    SELECT tried.state::text INTO ended_as FROM holdfast.payment_outbox_attempts AS tried
     WHERE tried.outbox_id = replay_outbox.outbox_id AND tried.state IN ('DISPATCHED', 'FAILED');
    IF ended_as IS DISTINCT FROM 'FAILED' THEN
        RAISE EXCEPTION 'INVALID_STATE: % is %, and only what has failed is replayed',
                replay_outbox.outbox_id, coalesce(ended_as, 'still pending')
            USING ERRCODE = 'P7003';
    END IF;

    -- As in enqueueing: under the participant's lock nobody else replays it.
    PERFORM FROM holdfast.participant_outbox_sequences AS sequences
      WHERE sequences.participant_id = failed.participant_id FOR UPDATE;
    SELECT known.* INTO replay FROM holdfast.payment_outbox_instructions AS known
     WHERE known.replay_of = replay_outbox.outbox_id;
    IF NOT FOUND THEN
        UPDATE holdfast.participant_outbox_sequences AS sequences SET last_sequence_id = last_sequence_id + 1
         WHERE sequences.participant_id = failed.participant_id RETURNING last_sequence_id INTO STRICT number;
        new_id := holdfast.time_ordered_uuid();
        INSERT INTO holdfast.payment_outbox_instructions
        VALUES (new_id, failed.instruction_id, failed.participant_id, number, failed.idempotency_key, failed.rail_type,
                failed.payload, clock_timestamp(), failed.outbox_id)
        RETURNING * INTO replay;
        INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at) VALUES (replay.outbox_id, replay.created_at);
    END IF;
    RETURN (replay.outbox_id, replay.instruction_id, replay.participant_id, replay.sequence_id, replay.idempotency_key,
            replay.rail_type, replay.payload, replay.created_at, new_id IS NOT NULL, true)::holdfast.payment_outbox_enqueued;
END
$$;

REVOKE ALL ON FUNCTION holdfast.replay_outbox(uuid) FROM PUBLIC;
