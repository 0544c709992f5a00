-- The desk: where what waits and what has died is seen, found by its key, put again, brought forward, replayed and resolved.
--
--   payment_outbox_dead_letters   what FAILED and nobody has acted on since                        (narrow, changes with each)
--   payment_outbox_resolutions    what a person has settled by hand, why, and who it was           (insert-only)
--
-- Why the dead have a table of their own: an attempt says FAILED for ever, also when it was replayed or resolved long ago. Those
-- that still want somebody are few, and must be counted without a walk over all that ever was tried.
--
-- Order by age: the first 48 bits of an outbox_id are a moment in milliseconds. `owe_payment_outbox_batch` takes the moment when
-- what is owed was made, and what goes round again stays right behind its last round; so the primary keys of the queue and of
-- the dead are in the order of age, and a list goes on where it was whatever happened to its last row.

SET LOCAL ROLE symphony_owner;

-- The last round of a key is the one with the highest number.
CREATE INDEX payment_outbox_instructions_by_key ON holdfast.payment_outbox_instructions (idempotency_key, sequence_id);

CREATE TABLE holdfast.payment_outbox_dead_letters (
    outbox_id uuid PRIMARY KEY,
    died_at   timestamptz NOT NULL
);
COMMENT ON TABLE holdfast.payment_outbox_dead_letters IS
    'What FAILED and was neither replayed nor resolved. Kept by a trigger on the attempts; replay and resolve take from it.';

CREATE TABLE holdfast.payment_outbox_resolutions (
    outbox_id   uuid PRIMARY KEY,
    note        text NOT NULL CHECK (length(note) BETWEEN 1 AND 2000),
    resolved_by text NOT NULL,
    at          timestamptz NOT NULL
);
CREATE TRIGGER payment_outbox_resolutions_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON holdfast.payment_outbox_resolutions
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change();
ALTER TABLE holdfast.payment_outbox_resolutions ENABLE ALWAYS TRIGGER payment_outbox_resolutions_append_only;

-- For each statement: it looks only at what the statement has written, and a batch pays for it once.
CREATE FUNCTION holdfast.keep_dead_letters() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, holdfast, pg_temp
AS $$
BEGIN
    INSERT INTO holdfast.payment_outbox_dead_letters (outbox_id, died_at)
    SELECT recorded.outbox_id, recorded.at FROM recorded WHERE recorded.state = 'FAILED';
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION holdfast.keep_dead_letters() FROM PUBLIC;
CREATE TRIGGER payment_outbox_attempts_dead_letters
    AFTER INSERT ON holdfast.payment_outbox_attempts REFERENCING NEW TABLE AS recorded
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.keep_dead_letters();

-- Those that died before there was this table.
INSERT INTO holdfast.payment_outbox_dead_letters (outbox_id, died_at)
SELECT tried.outbox_id, tried.at FROM holdfast.payment_outbox_attempts AS tried
 WHERE tried.state = 'FAILED'
   AND NOT EXISTS (SELECT FROM holdfast.payment_outbox_instructions AS again WHERE again.replay_of = tried.outbox_id);

-- An identifier with the moment at which something was made, and its place among those of one batch. (Version 7.)
-- Without a search_path of its own, as time_ordered_uuid.
CREATE FUNCTION holdfast.age_ordered_uuid(made_at_ms bigint, place bigint) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT pg_catalog.encode(pg_catalog.overlay(pg_catalog.overlay(
               pg_catalog.uuid_send(pg_catalog.gen_random_uuid()),
               pg_catalog.substring(pg_catalog.int8send(LEAST(GREATEST(made_at_ms, 0), 281474976710655)), 3), 1, 6),
               pg_catalog.int2send((28672 OPERATOR(pg_catalog.+) LEAST(place, 4095))::pg_catalog.int2), 7, 2),
               'hex')::pg_catalog.uuid
$$;
REVOKE ALL ON FUNCTION holdfast.age_ordered_uuid(bigint, bigint) FROM PUBLIC;

-- The identifier right behind another one. That it is taken by chance has odds of one in 2^61 for each neighbour in its
-- millisecond, and the primary key would say so.
CREATE FUNCTION holdfast.following_uuid(outbox_id uuid) RETURNS uuid
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
DECLARE
    digits text := replace(outbox_id::text, '-', '');
    last   bigint := ('x' || right(digits, 8))::bit(32)::bigint;
BEGIN
    IF last >= 4294967295 THEN
        RETURN holdfast.time_ordered_uuid();
    END IF;
    RETURN (left(digits, 24) || lpad(to_hex(last + 1), 8, '0'))::uuid;
END
$$;
REVOKE ALL ON FUNCTION holdfast.following_uuid(uuid) FROM PUBLIC;

-- The newest migration that was applied, for a program that wants to know before it begins.
CREATE FUNCTION holdfast.schema_version() RETURNS integer
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
    SELECT coalesce(max(version), 0) FROM holdfast.schema_migrations
$$;
REVOKE ALL ON FUNCTION holdfast.schema_version() FROM PUBLIC;

-- Sees to it that each of these is in the outbox, all or none, and says how many had to be put there. One that waits or is dead
-- stays as it is. One that ended well, or was resolved, goes round again with the same key, because whoever owes it says that
-- it is owed still: the receiver knows the key. `made_at_ms` is when it came to be owed, and gives its place by age.
CREATE FUNCTION holdfast.owe_payment_outbox_batch(
    instruction_ids text[], participant_ids text[], idempotency_keys text[], rail_types text[], payloads jsonb[],
    made_at_ms bigint[])
RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    asked    integer := coalesce(cardinality(instruction_ids), 0);
    heads    uuid[];
    new_ids  uuid[];
    new_one  boolean;
    moment   timestamptz;
    counted  record;
    made     integer := 0;
BEGIN
    IF asked <> coalesce(cardinality(participant_ids), 0) OR asked <> coalesce(cardinality(idempotency_keys), 0)
        OR asked <> coalesce(cardinality(rail_types), 0) OR asked <> coalesce(cardinality(payloads), 0)
        OR asked <> coalesce(cardinality(made_at_ms), 0)
    THEN
        RAISE EXCEPTION 'the arrays have different lengths' USING ERRCODE = '22023';
    END IF;

    -- As in enqueueing: participants are locked in one order, and under the lock the look below cannot be overtaken.
    SELECT count(*) > count(locked.found) INTO new_one
      FROM (SELECT DISTINCT participant_id FROM unnest(participant_ids) AS given (participant_id) ORDER BY 1) AS named
      LEFT JOIN LATERAL (SELECT true AS found FROM holdfast.participant_outbox_sequences AS sequences
                          WHERE sequences.participant_id = named.participant_id LIMIT 1 FOR UPDATE) AS locked ON true;
    IF new_one THEN
        INSERT INTO holdfast.participant_outbox_sequences (participant_id, last_sequence_id)
        SELECT DISTINCT participant_id, 0 FROM unnest(participant_ids) AS given (participant_id) ORDER BY 1
        ON CONFLICT DO NOTHING;
        PERFORM locked.found
          FROM (SELECT DISTINCT participant_id FROM unnest(participant_ids) AS given (participant_id) ORDER BY 1) AS named
         CROSS JOIN LATERAL (SELECT true AS found FROM holdfast.participant_outbox_sequences AS sequences
                              WHERE sequences.participant_id = named.participant_id LIMIT 1 FOR UPDATE) AS locked;
    END IF;

    -- The last round of each, and an id for each that is to begin one: the first of its key in this batch, if no round is open.
    moment := clock_timestamp();
    SELECT array_agg(looked_up.head ORDER BY looked_up.place),
           array_agg(CASE WHEN NOT looked_up.first_of_key OR looked_up.is_open THEN NULL
                          WHEN looked_up.head IS NOT NULL THEN holdfast.following_uuid(looked_up.head)
                          ELSE holdfast.age_ordered_uuid(looked_up.made_at_ms, looked_up.by_age - 1) END
                     ORDER BY looked_up.place)
      INTO heads, new_ids
      FROM (SELECT named.*, round.head,
                   row_number() OVER (PARTITION BY participant_id, idempotency_key ORDER BY place) = 1 AS first_of_key,
                   row_number() OVER (ORDER BY made_at_ms, idempotency_key) AS by_age,
                   waiting.is_open IS NOT NULL OR dead.is_open IS NOT NULL AS is_open
              FROM unnest(participant_ids, idempotency_keys, made_at_ms) WITH ORDINALITY
                AS named (participant_id, idempotency_key, made_at_ms, place)
              LEFT JOIN LATERAL (
                SELECT known.outbox_id AS head FROM holdfast.payment_outbox_instructions AS known
                 WHERE known.idempotency_key = named.idempotency_key
                   AND known.participant_id IS NOT DISTINCT FROM named.participant_id
                 ORDER BY known.sequence_id DESC LIMIT 1) AS round ON true
              -- Not EXISTS: that may be planned as a hash of the whole table (61 ms for a put at 100,000 pending, against 1).
              LEFT JOIN LATERAL (SELECT true AS is_open FROM holdfast.payment_outbox_queue AS queue
                                  WHERE queue.outbox_id = round.head LIMIT 1) AS waiting ON true
              LEFT JOIN LATERAL (SELECT true AS is_open FROM holdfast.payment_outbox_dead_letters AS letter
                                  WHERE letter.outbox_id = round.head LIMIT 1) AS dead ON true) AS looked_up;

    WITH fresh AS MATERIALIZED (
        SELECT named.*, row_number() OVER (PARTITION BY participant_id ORDER BY place) AS nth
          FROM unnest(new_ids, heads, instruction_ids, participant_ids, idempotency_keys, rail_types, payloads) WITH ORDINALITY
            AS named (outbox_id, head, instruction_id, participant_id, idempotency_key, rail_type, payload, place)
         WHERE outbox_id IS NOT NULL
    ), instructed AS (
        INSERT INTO holdfast.payment_outbox_instructions
            (outbox_id, instruction_id, participant_id, sequence_id, idempotency_key, rail_type, payload, created_at, replay_of)
        SELECT fresh.outbox_id, fresh.instruction_id, fresh.participant_id, sequences.last_sequence_id + fresh.nth,
               fresh.idempotency_key, fresh.rail_type, fresh.payload, moment, fresh.head
          FROM fresh
         CROSS JOIN LATERAL (SELECT last_sequence_id FROM holdfast.participant_outbox_sequences AS found
                              WHERE found.participant_id = fresh.participant_id LIMIT 1) AS sequences
    )
    INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at)
    SELECT fresh.outbox_id, moment - (asked - fresh.place) * interval '1 microsecond' FROM fresh;

    FOR counted IN
        SELECT participant_id, count(*)::integer AS made
          FROM unnest(new_ids, participant_ids) AS given (outbox_id, participant_id)
         WHERE outbox_id IS NOT NULL GROUP BY participant_id
    LOOP
        UPDATE holdfast.participant_outbox_sequences AS sequences SET last_sequence_id = last_sequence_id + counted.made
         WHERE sequences.participant_id = counted.participant_id;
        made := made + counted.made;
    END LOOP;
    RETURN made;
END
$$;
REVOKE ALL ON FUNCTION holdfast.owe_payment_outbox_batch(text[], text[], text[], text[], jsonb[], bigint[]) FROM PUBLIC;

-- In how many milliseconds the next row is due or a lease runs out: negative if that moment has been, NULL if nothing waits.
CREATE FUNCTION holdfast.next_outbox_due() RETURNS bigint
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN ceil(EXTRACT(epoch FROM least(
        (SELECT queue.next_attempt_at FROM holdfast.payment_outbox_queue AS queue
          WHERE queue.lease_token IS NULL AND queue.crash_count = 0
          ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1),
        (SELECT queue.next_attempt_at FROM holdfast.payment_outbox_queue AS queue
          WHERE queue.lease_token IS NULL AND queue.crash_count > 0
          ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1),
        (SELECT queue.lease_expires_at FROM holdfast.payment_outbox_queue AS queue
          WHERE queue.lease_token IS NOT NULL
          ORDER BY queue.lease_expires_at LIMIT 1)) - clock_timestamp()) * 1000)::bigint;
END
$$;
REVOKE ALL ON FUNCTION holdfast.next_outbox_due() FROM PUBLIC;

-- Sets the claim that `token` proves on those of `outbox_ids` that it still holds to end in `lease_ms`: sooner or later than it
-- would. extend_outbox_lease is the heartbeat; this is for a lease that is no whole number of seconds.
CREATE FUNCTION holdfast.set_outbox_lease(outbox_ids uuid[], token uuid, lease_ms bigint)
RETURNS TABLE (outbox_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    places tid[];
    moment timestamptz;
BEGIN
    IF lease_ms IS NULL OR lease_ms NOT BETWEEN 0 AND 86400000 THEN
        RAISE EXCEPTION 'lease_ms is %, and must be from 0 to 86400000', lease_ms USING ERRCODE = '22023';
    END IF;
    places := ARRAY(
        SELECT locked.place
          FROM (SELECT DISTINCT outbox_id FROM unnest(outbox_ids) AS given (outbox_id) ORDER BY 1) AS named
         CROSS JOIN LATERAL (SELECT queue.ctid AS place FROM holdfast.payment_outbox_queue AS queue
                              WHERE queue.outbox_id = named.outbox_id AND queue.lease_token IS NOT DISTINCT FROM token
                              LIMIT 1 FOR UPDATE) AS locked);
    moment := clock_timestamp();
    RETURN QUERY
    UPDATE holdfast.payment_outbox_queue AS queue SET lease_expires_at = moment + make_interval(secs => lease_ms / 1000.0)
     WHERE queue.ctid = ANY (places) AND (queue.lease_expires_at > moment) IS TRUE
    RETURNING queue.outbox_id;
END
$$;
REVOKE ALL ON FUNCTION holdfast.set_outbox_lease(uuid[], uuid, bigint) FROM PUBLIC;

-- Makes those of `outbox_ids` that nobody has due after `delays_ms`, up to a century: for a pause beyond what completion takes,
-- and for what repair gave back and is wanted at once. Says which.
CREATE FUNCTION holdfast.reschedule_outbox(outbox_ids uuid[], delays_ms bigint[])
RETURNS TABLE (outbox_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    places tid[];
    moment timestamptz;
BEGIN
    IF coalesce(cardinality(outbox_ids), 0) <> coalesce(cardinality(delays_ms), 0) THEN
        RAISE EXCEPTION 'the arrays have different lengths' USING ERRCODE = '22023';
    END IF;
    places := ARRAY(
        SELECT locked.place
          FROM (SELECT DISTINCT outbox_id FROM unnest(outbox_ids) AS given (outbox_id) ORDER BY 1) AS named
         CROSS JOIN LATERAL (SELECT queue.ctid AS place FROM holdfast.payment_outbox_queue AS queue
                              WHERE queue.outbox_id = named.outbox_id AND (queue.lease_token IS NULL) IS TRUE
                              LIMIT 1 FOR UPDATE) AS locked);
    moment := clock_timestamp();
    RETURN QUERY
    UPDATE holdfast.payment_outbox_queue AS queue
       SET next_attempt_at = moment + make_interval(secs => least(greatest(coalesce(
               delays_ms[array_position(outbox_ids, queue.outbox_id)], 0), 0), 3155760000000) / 1000.0)
     WHERE queue.ctid = ANY (places) AND (queue.lease_token IS NULL) IS TRUE
    RETURNING queue.outbox_id;
END
$$;
REVOKE ALL ON FUNCTION holdfast.reschedule_outbox(uuid[], bigint[]) FROM PUBLIC;

-- A row as the desk shows it. `standing` is DUE, LEASED or DEAD; `in_ms` is how far off it is due or its lease runs out, which is
-- negative for a moment that has been; `error_text` is the last word about it.
CREATE TYPE holdfast.payment_outbox_standing AS (
    outbox_id uuid, idempotency_key text, payload jsonb, attempt_count integer, error_text text, standing text, in_ms bigint,
    claimed_by text);

-- These, in this order, as far as they wait or are dead.
CREATE FUNCTION holdfast.describe_outbox(outbox_ids uuid[]) RETURNS SETOF holdfast.payment_outbox_standing
    LANGUAGE plpgsql
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT named.outbox_id, instruction.idempotency_key, instruction.payload,
           coalesce(queue.attempt_count, last.attempt_no, 0), last.error_text,
           CASE WHEN queue.outbox_id IS NULL THEN 'DEAD' WHEN queue.lease_token IS NULL THEN 'DUE' ELSE 'LEASED' END,
           ceil(EXTRACT(epoch FROM coalesce(queue.lease_expires_at, queue.next_attempt_at) - moment) * 1000)::bigint,
           queue.claimed_by
      FROM unnest(outbox_ids) WITH ORDINALITY AS named (outbox_id, place)
      LEFT JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_queue AS found
                          WHERE found.outbox_id = named.outbox_id LIMIT 1) AS queue ON true
      LEFT JOIN LATERAL (SELECT found.outbox_id FROM holdfast.payment_outbox_dead_letters AS found
                          WHERE found.outbox_id = named.outbox_id LIMIT 1) AS dead ON true
      LEFT JOIN LATERAL (SELECT found.idempotency_key, found.payload FROM holdfast.payment_outbox_instructions AS found
                          WHERE found.outbox_id = named.outbox_id LIMIT 1) AS instruction ON true
      LEFT JOIN LATERAL (SELECT tried.attempt_no, tried.error_text FROM holdfast.payment_outbox_attempts AS tried
                          WHERE tried.outbox_id = named.outbox_id ORDER BY tried.attempt_no DESC LIMIT 1) AS last ON true
     WHERE queue.outbox_id IS NOT NULL OR dead.outbox_id IS NOT NULL
     ORDER BY named.place;
END
$$;
REVOKE ALL ON FUNCTION holdfast.describe_outbox(uuid[]) FROM PUBLIC;

-- The last round of a key; NULL if there is none.
CREATE FUNCTION holdfast.last_outbox_round(idempotency_key text) RETURNS uuid
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (SELECT known.outbox_id FROM holdfast.payment_outbox_instructions AS known
             WHERE known.idempotency_key = last_outbox_round.idempotency_key
             ORDER BY known.sequence_id DESC LIMIT 1);
END
$$;
REVOKE ALL ON FUNCTION holdfast.last_outbox_round(text) FROM PUBLIC;

-- What waits or is dead under this key: one row or none.
CREATE FUNCTION holdfast.find_outbox(idempotency_key text) RETURNS SETOF holdfast.payment_outbox_standing
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT * FROM holdfast.describe_outbox(ARRAY[holdfast.last_outbox_round(find_outbox.idempotency_key)]);
END
$$;
REVOKE ALL ON FUNCTION holdfast.find_outbox(text) FROM PUBLIC;

-- Up to `batch_size` by age, after the one of this key, wherever that stands now; from the first if it neither waits nor is dead.
-- `which` is PENDING or DEAD.
CREATE FUNCTION holdfast.list_outbox(which text, after_key text, batch_size integer)
RETURNS SETOF holdfast.payment_outbox_standing
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    after uuid := coalesce((SELECT found.outbox_id FROM holdfast.find_outbox(after_key) AS found),
                           '00000000-0000-0000-0000-000000000000');
BEGIN
    IF batch_size IS NULL OR batch_size NOT BETWEEN 0 AND 10000 THEN
        RAISE EXCEPTION 'batch_size is %, and must be from 0 to 10000', batch_size USING ERRCODE = '22023';
    END IF;
    IF which = 'PENDING' THEN
        RETURN QUERY SELECT * FROM holdfast.describe_outbox(ARRAY(
            SELECT queue.outbox_id FROM holdfast.payment_outbox_queue AS queue
             WHERE queue.outbox_id > after ORDER BY queue.outbox_id LIMIT batch_size));
    ELSIF which = 'DEAD' THEN
        RETURN QUERY SELECT * FROM holdfast.describe_outbox(ARRAY(
            SELECT dead.outbox_id FROM holdfast.payment_outbox_dead_letters AS dead
             WHERE dead.outbox_id > after ORDER BY dead.outbox_id LIMIT batch_size));
    ELSE
        RAISE EXCEPTION 'which is %, and must be PENDING or DEAD', coalesce(quote_literal(which), 'NULL')
            USING ERRCODE = '22023';
    END IF;
END
$$;
REVOKE ALL ON FUNCTION holdfast.list_outbox(text, text, integer) FROM PUBLIC;

-- How many wait and how many are dead, counted one by one: a million in some 100 ms.
CREATE FUNCTION holdfast.count_outbox(OUT pending bigint, OUT dead bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
    SELECT (SELECT count(*) FROM holdfast.payment_outbox_queue),
           (SELECT count(*) FROM holdfast.payment_outbox_dead_letters)
$$;
REVOKE ALL ON FUNCTION holdfast.count_outbox() FROM PUBLIC;

-- As it was, and: it takes the dead letter away, what was resolved is not replayed, and the new row keeps the place by age.
CREATE OR REPLACE FUNCTION holdfast.replay_outbox(outbox_id uuid)
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
        DELETE FROM holdfast.payment_outbox_dead_letters AS dead WHERE dead.outbox_id = replay_outbox.outbox_id;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'INVALID_STATE: % was resolved, and is not replayed', replay_outbox.outbox_id
                USING ERRCODE = 'P7003';
        END IF;
        UPDATE holdfast.participant_outbox_sequences AS sequences SET last_sequence_id = last_sequence_id + 1
         WHERE sequences.participant_id = failed.participant_id RETURNING last_sequence_id INTO STRICT number;
        new_id := holdfast.following_uuid(failed.outbox_id);
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

-- Makes what is dead or waits under this key due now, with attempts from 1. Says whether there was one that nobody has in hand.
-- One that waits and was tried ends as FAILED with the code REPLAYED, and goes round again: its attempts stay on record.
CREATE FUNCTION holdfast.replay_outbox_key(idempotency_key text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    head    uuid := holdfast.last_outbox_round(replay_outbox_key.idempotency_key);
    waiting holdfast.payment_outbox_queue;
    tries   integer;
BEGIN
    SELECT queue.* INTO waiting FROM holdfast.payment_outbox_queue AS queue WHERE queue.outbox_id = head FOR UPDATE;
    IF FOUND THEN
        IF waiting.lease_token IS NOT NULL THEN
            RETURN false;
        END IF;
        SELECT max(tried.attempt_no) INTO tries FROM holdfast.payment_outbox_attempts AS tried WHERE tried.outbox_id = head;
        IF tries IS NULL THEN
            UPDATE holdfast.payment_outbox_queue AS queue SET next_attempt_at = clock_timestamp()
             WHERE queue.outbox_id = head;
            RETURN true;
        END IF;
        INSERT INTO holdfast.payment_outbox_attempts
            (outbox_id, attempt_no, state, worker_id, lease_token, at, error_code, error_text)
        VALUES (head, tries + 1, 'FAILED', session_user, gen_random_uuid(), clock_timestamp(), 'REPLAYED',
                'somebody wants it tried now, from the first attempt on');
        DELETE FROM holdfast.payment_outbox_queue AS queue WHERE queue.outbox_id = head;
    ELSIF NOT EXISTS (SELECT FROM holdfast.payment_outbox_dead_letters AS dead WHERE dead.outbox_id = head) THEN
        RETURN false;
    END IF;
    PERFORM holdfast.replay_outbox(head);
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION holdfast.replay_outbox_key(text) FROM PUBLIC;

-- Takes what is dead under this key out for good, because somebody has settled it by hand; the note says how. Says whether there
-- was one.
CREATE FUNCTION holdfast.resolve_outbox_key(idempotency_key text, note text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    head uuid := holdfast.last_outbox_round(resolve_outbox_key.idempotency_key);
BEGIN
    DELETE FROM holdfast.payment_outbox_dead_letters AS dead WHERE dead.outbox_id = head;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO holdfast.payment_outbox_resolutions (outbox_id, note, resolved_by, at)
    VALUES (head, resolve_outbox_key.note, session_user, clock_timestamp());
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION holdfast.resolve_outbox_key(text, text) FROM PUBLIC;

-- Who may do what, in addition to 0007_outbox_grants.sql.
GRANT EXECUTE ON FUNCTION holdfast.schema_version()
    TO symphony_ingest, symphony_executor, symphony_admin, symphony_auditor, symphony_readonly, symphony_ledger;
GRANT EXECUTE ON FUNCTION holdfast.owe_payment_outbox_batch(text[], text[], text[], text[], jsonb[], bigint[])
    TO symphony_ingest;
GRANT EXECUTE ON FUNCTION
    holdfast.next_outbox_due(), holdfast.set_outbox_lease(uuid[], uuid, bigint), holdfast.reschedule_outbox(uuid[], bigint[])
    TO symphony_executor;
GRANT EXECUTE ON FUNCTION holdfast.replay_outbox_key(text), holdfast.resolve_outbox_key(text, text) TO symphony_admin;
GRANT EXECUTE ON FUNCTION holdfast.find_outbox(text), holdfast.list_outbox(text, text, integer), holdfast.count_outbox()
    TO symphony_admin, symphony_auditor, symphony_readonly;
GRANT SELECT ON holdfast.payment_outbox_dead_letters, holdfast.payment_outbox_resolutions
    TO symphony_admin, symphony_auditor, symphony_readonly;
