-- Enqueueing: in the transaction that owes the delivery, so that both are there or neither is.
--
-- All functions of the outbox, here and in the next files:
-- - run with the rights of symphony_owner, who cannot log in; callers have no rights on tables. So the search_path is fixed,
--   with pg_temp named and last, every name is written with its schema, and PUBLIC may execute none of them.
-- - pin their plans. The tables are empty when a plan is made and hold millions when it is used, so no estimate can be right:
--   index scans and nested loops only, the same plan always, and no compiling. And where many rows are looked up, each is in a
--   LATERAL subquery with a LIMIT: that leaves no choice of which side is walked. (A plain join, planned while the table was
--   empty, walked the table once for each row given: a minute for a thousand.)
-- - ask clock_timestamp(), not now(): a transaction may be long, and now() stands still in it. Callers give delays and never
--   moments, so their clocks do not matter.
-- - do not NOTIFY: inside a paying transaction it takes a lock that all commits wait for (3,230 a second became 620). Wake the
--   workers from a connection of its own after the commit, at most a few times a second, and let them poll besides.

SET LOCAL ROLE symphony_owner;

-- Enqueues many at once, all or none. For each, in `ordinal` order: the row that was made (`created`), or the one that was
-- there under the participant's key, unchanged; then `same_body` says whether what was asked for now is what it says.
CREATE FUNCTION holdfast.enqueue_payment_outbox_batch(
    instruction_ids text[], participant_ids text[], idempotency_keys text[], rail_types text[], payloads jsonb[])
RETURNS TABLE (ordinal integer, outbox_id uuid, sequence_id bigint, created_at timestamptz, created boolean, same_body boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    asked    integer := coalesce(cardinality(instruction_ids), 0);
    new_ids  uuid[];
    new_one  boolean;
    made_at  timestamptz;
    counted  record;
BEGIN
    IF asked <> coalesce(cardinality(participant_ids), 0) OR asked <> coalesce(cardinality(idempotency_keys), 0)
        OR asked <> coalesce(cardinality(rail_types), 0) OR asked <> coalesce(cardinality(payloads), 0)
    THEN
        RAISE EXCEPTION 'the arrays have different lengths' USING ERRCODE = '22023';
    END IF;

    -- One participant's lock is held until the commit, and participants are locked in one order, so that two batches never
    -- wait for each other. Under the lock nobody else enqueues for this participant: the look below cannot be overtaken.
    SELECT count(*) > count(locked.found) INTO new_one
      FROM (SELECT DISTINCT participant_id FROM unnest(participant_ids) AS given (participant_id) ORDER BY 1) AS named
      LEFT JOIN LATERAL (SELECT true AS found FROM holdfast.participant_outbox_sequences AS sequences
                          WHERE sequences.participant_id = named.participant_id LIMIT 1 FOR UPDATE) AS locked ON true;
    IF new_one THEN
        INSERT INTO holdfast.participant_outbox_sequences (participant_id, last_sequence_id)
        SELECT DISTINCT participant_id, 0 FROM unnest(participant_ids) AS given (participant_id) ORDER BY 1
        ON CONFLICT DO NOTHING;
        -- Who came first holds the row that we did not make.
        PERFORM locked.found
          FROM (SELECT DISTINCT participant_id FROM unnest(participant_ids) AS given (participant_id) ORDER BY 1) AS named
         CROSS JOIN LATERAL (SELECT true AS found FROM holdfast.participant_outbox_sequences AS sequences
                              WHERE sequences.participant_id = named.participant_id LIMIT 1 FOR UPDATE) AS locked;
    END IF;

    -- An id for each that is new: not there yet, and the first of its key in this batch. Taken under the lock, so that of one
    -- participant a later number never was made earlier.
    made_at := clock_timestamp();
    SELECT array_agg(CASE WHEN first_of_key AND NOT there THEN holdfast.time_ordered_uuid() END ORDER BY place) INTO new_ids
      FROM (SELECT place, row_number() OVER (PARTITION BY participant_id, idempotency_key ORDER BY place) = 1 AS first_of_key,
                   EXISTS (SELECT FROM holdfast.payment_outbox_instructions AS known
                           WHERE known.participant_id = named.participant_id
                             AND known.idempotency_key = named.idempotency_key AND known.replay_of IS NULL) AS there
              FROM unnest(participant_ids, idempotency_keys) WITH ORDINALITY
                AS named (participant_id, idempotency_key, place)) AS looked_up;

    WITH fresh AS MATERIALIZED (
        SELECT named.*, row_number() OVER (PARTITION BY participant_id ORDER BY place) AS nth
          FROM unnest(new_ids, instruction_ids, participant_ids, idempotency_keys, rail_types, payloads) WITH ORDINALITY
            AS named (outbox_id, instruction_id, participant_id, idempotency_key, rail_type, payload, place)
         WHERE outbox_id IS NOT NULL
    ), instructed AS (
        INSERT INTO holdfast.payment_outbox_instructions
            (outbox_id, instruction_id, participant_id, sequence_id, idempotency_key, rail_type, payload, created_at)
        SELECT fresh.outbox_id, fresh.instruction_id, fresh.participant_id, sequences.last_sequence_id + fresh.nth,
               fresh.idempotency_key, fresh.rail_type, fresh.payload, made_at
          FROM fresh
         CROSS JOIN LATERAL (SELECT last_sequence_id FROM holdfast.participant_outbox_sequences AS found
                              WHERE found.participant_id = fresh.participant_id LIMIT 1) AS sequences
    )
    INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at)
    -- A microsecond apart, the last of them now: they are claimed in the order in which they were given.
    SELECT fresh.outbox_id, made_at - (asked - fresh.place) * interval '1 microsecond' FROM fresh;

    FOR counted IN
        SELECT participant_id, count(*) AS made
          FROM unnest(new_ids, participant_ids) AS given (outbox_id, participant_id)
         WHERE outbox_id IS NOT NULL GROUP BY participant_id
    LOOP
        UPDATE holdfast.participant_outbox_sequences AS sequences SET last_sequence_id = last_sequence_id + counted.made
         WHERE sequences.participant_id = counted.participant_id;
    END LOOP;

    RETURN QUERY
    SELECT named.place::integer, known.outbox_id, known.sequence_id, known.created_at, named.new_id IS NOT NULL,
           known.instruction_id = named.instruction_id AND known.rail_type = named.rail_type AND known.payload = named.payload
      FROM unnest(new_ids, instruction_ids, participant_ids, idempotency_keys, rail_types, payloads) WITH ORDINALITY
             AS named (new_id, instruction_id, participant_id, idempotency_key, rail_type, payload, place)
     CROSS JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_instructions AS found
                          WHERE found.participant_id = named.participant_id
                            AND found.idempotency_key = named.idempotency_key AND found.replay_of IS NULL LIMIT 1) AS known;
END
$$;

CREATE TYPE holdfast.payment_outbox_enqueued AS (
    outbox_id uuid, instruction_id text, participant_id text, sequence_id bigint, idempotency_key text, rail_type text,
    payload jsonb, created_at timestamptz, created boolean, same_body boolean);

-- Enqueues one, and gives back the row that it made or the one that was there.
CREATE FUNCTION holdfast.enqueue_payment_outbox(
    instruction_id text, participant_id text, idempotency_key text, rail_type text, payload jsonb)
RETURNS holdfast.payment_outbox_enqueued
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    enqueued record;
    known    holdfast.payment_outbox_instructions;
BEGIN
    SELECT * INTO STRICT enqueued FROM holdfast.enqueue_payment_outbox_batch(
        ARRAY[enqueue_payment_outbox.instruction_id], ARRAY[enqueue_payment_outbox.participant_id],
        ARRAY[enqueue_payment_outbox.idempotency_key], ARRAY[enqueue_payment_outbox.rail_type],
        ARRAY[enqueue_payment_outbox.payload]);
    SELECT * INTO STRICT known FROM holdfast.payment_outbox_instructions AS instruction
     WHERE instruction.outbox_id = enqueued.outbox_id;
    RETURN (known.outbox_id, known.instruction_id, known.participant_id, known.sequence_id, known.idempotency_key,
            known.rail_type, known.payload, known.created_at, enqueued.created, enqueued.same_body
           )::holdfast.payment_outbox_enqueued;
END
$$;

REVOKE ALL ON FUNCTION holdfast.enqueue_payment_outbox_batch(text[], text[], text[], text[], jsonb[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.enqueue_payment_outbox(text, text, text, text, jsonb) FROM PUBLIC;
