-- Claiming, and what a worker does with a claim besides completing it: prolong it, or give it back.

SET LOCAL ROLE symphony_owner;

-- Repairs leases that ran out: the worker was not heard of again. Each goes back to wait for a second, with an attempt
-- ZOMBIE_REQUEUE in the lost worker's name, which counts. Any worker may call this, and none waits for another.
--
-- What brings down worker after worker is stopped: a row has one crash for the company that it may have been in, and then
-- three that it was claimed alone for (see claim_outbox_batch). After the fourth in a row it is FAILED, as it is when its
-- attempts are used up. TERMINAL_CONFLICT cannot come of these functions: the row had ended already, and so is taken away.
CREATE FUNCTION holdfast.repair_expired_leases(batch_size integer, worker_id text)
RETURNS TABLE (outbox_id uuid, state text, attempt_no integer, lost_worker_id text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    attempts_max CONSTANT integer := 20;
    crashes_max  CONSTANT integer := 4;
    moment       timestamptz := clock_timestamp();
    places       tid[];
BEGIN
    IF batch_size IS NULL OR batch_size NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'batch_size is %, and must be from 1 to 10000', batch_size USING ERRCODE = '22023';
    END IF;
    IF worker_id IS NULL OR length(worker_id) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'worker_id must have from 1 to 200 characters' USING ERRCODE = '22023';
    END IF;

    -- Locked by a statement of its own: the next one then sees the rows, and their attempts, as they are under the lock.
    places := ARRAY(
        SELECT queue.ctid FROM holdfast.payment_outbox_queue AS queue
         WHERE queue.lease_token IS NOT NULL AND queue.lease_expires_at <= moment
         ORDER BY queue.lease_expires_at
         LIMIT batch_size FOR UPDATE SKIP LOCKED);
    IF cardinality(places) = 0 THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH lost AS MATERIALIZED (
        SELECT queue.ctid AS place, queue.outbox_id, queue.claimed_by, queue.lease_token,
               history.attempt_no, history.is_over,
               CASE WHEN history.attempt_no >= attempts_max THEN 'its attempts are used up'
                    WHEN queue.crash_count + 1 >= crashes_max THEN 'it has cost too many workers' END AS given_up
          FROM holdfast.payment_outbox_queue AS queue
         CROSS JOIN LATERAL (
            SELECT coalesce(max(tried.attempt_no), 0) + 1 AS attempt_no,
                   coalesce(bool_or(tried.state IN ('DISPATCHED', 'FAILED')), false) AS is_over
              FROM holdfast.payment_outbox_attempts AS tried WHERE tried.outbox_id = queue.outbox_id) AS history
         WHERE queue.ctid = ANY (places)
    ), recorded AS (
        INSERT INTO holdfast.payment_outbox_attempts
            (outbox_id, attempt_no, state, worker_id, lease_token, at, error_code, error_text)
        SELECT lost.outbox_id, lost.attempt_no,
               CASE WHEN lost.given_up IS NULL THEN 'ZOMBIE_REQUEUE' ELSE 'FAILED' END::holdfast.payment_outbox_state,
               lost.claimed_by, lost.lease_token, moment, 'LEASE_EXPIRED',
               concat_ws('; ', 'the lease ran out', lost.given_up, 'found by ' || repair_expired_leases.worker_id)
          FROM lost WHERE NOT lost.is_over
    ), ended AS (
        DELETE FROM holdfast.payment_outbox_queue AS queue
         WHERE queue.ctid = ANY (ARRAY(SELECT lost.place FROM lost WHERE lost.is_over OR lost.given_up IS NOT NULL))
    ), again AS (
        UPDATE holdfast.payment_outbox_queue AS queue
           SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
               next_attempt_at = moment + interval '1 second', crash_count = queue.crash_count + 1,
               attempt_count = greatest(queue.attempt_count, 1 + coalesce(
                   (SELECT max(tried.attempt_no) FROM holdfast.payment_outbox_attempts AS tried
                     WHERE tried.outbox_id = queue.outbox_id), 0))
         WHERE queue.ctid = ANY (ARRAY(SELECT lost.place FROM lost WHERE NOT lost.is_over AND lost.given_up IS NULL))
    )
    SELECT lost.outbox_id,
           CASE WHEN lost.is_over THEN 'TERMINAL_CONFLICT' WHEN lost.given_up IS NULL THEN 'ZOMBIE_REQUEUE' ELSE 'FAILED' END,
           lost.attempt_no, lost.claimed_by
      FROM lost;
END
$$;

-- Leases up to `batch_size` rows that are due to `worker_id` for `lease_seconds`, the longest due first, with one token that no
-- claim had before. They stay where they are: completing, releasing or the lease's end changes them next.
--
-- `epoch` grows with each claim: send it along with the idempotency key, and the receiver can refuse who comes late.
--
-- `due_after` is for those who claim all the time. While somebody's old transaction keeps dead rows from being removed, a claim
-- walks over all that was ever claimed (0.5 ms became 29 in 50 s). So pass the least next_attempt_at of the last batch minus
-- half a second, and once a second nothing, to find what came late; a claim then starts where the last one did (0.9 ms).
--
-- Whom a crash suspects: a batch whose worker died comes back by repair, and any of its rows may have been the cause. Each of
-- these is claimed alone, in its turn, until an attempt on it ends in order; so what kills its worker kills nothing else.
--
-- Leases that ran out are taken only if nothing else is due, one by one and by way of repair, so that every crash is on record.
CREATE FUNCTION holdfast.claim_outbox_batch(
    batch_size integer, worker_id text, lease_seconds integer, due_after timestamptz DEFAULT '-infinity')
RETURNS TABLE (outbox_id uuid, instruction_id text, participant_id text, sequence_id bigint, idempotency_key text,
               rail_type text, payload jsonb, attempt_count integer, created_at timestamptz, next_attempt_at timestamptz,
               claimed_by text, lease_token uuid, lease_expires_at timestamptz, epoch bigint, crash_count smallint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- As a value: compared with the function itself, an index would not be read in order.
    moment      timestamptz := clock_timestamp();
    until       timestamptz := moment + make_interval(secs => lease_seconds);
    token       uuid := gen_random_uuid();
    fence       bigint;
    suspect_due timestamptz;
    healthy_due timestamptz;
    places      tid[] := '{}';
    expired     record;
BEGIN
    IF batch_size IS NULL OR batch_size NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'batch_size is %, and must be from 1 to 10000', batch_size USING ERRCODE = '22023';
    END IF;
    IF worker_id IS NULL OR length(worker_id) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'worker_id must have from 1 to 200 characters' USING ERRCODE = '22023';
    END IF;
    IF lease_seconds IS NULL OR lease_seconds NOT BETWEEN 1 AND 86400 THEN
        RAISE EXCEPTION 'lease_seconds is %, and must be from 1 to 86400', lease_seconds USING ERRCODE = '22023';
    END IF;

    SELECT queue.next_attempt_at INTO suspect_due FROM holdfast.payment_outbox_queue AS queue
     WHERE queue.lease_token IS NULL AND queue.crash_count > 0 AND queue.next_attempt_at <= moment
     ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1;
    IF suspect_due IS NOT NULL THEN
        SELECT queue.next_attempt_at INTO healthy_due FROM holdfast.payment_outbox_queue AS queue
         WHERE queue.lease_token IS NULL AND queue.crash_count = 0
           AND queue.next_attempt_at <= moment AND queue.next_attempt_at >= due_after
         ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1;
        IF healthy_due IS NULL OR suspect_due <= healthy_due THEN
            places := ARRAY(
                SELECT queue.ctid FROM holdfast.payment_outbox_queue AS queue
                 WHERE queue.lease_token IS NULL AND queue.crash_count > 0 AND queue.next_attempt_at <= moment
                 ORDER BY queue.next_attempt_at, queue.outbox_id
                 LIMIT 1 FOR UPDATE SKIP LOCKED);
        END IF;
    END IF;
    IF cardinality(places) = 0 THEN
        places := ARRAY(
            SELECT queue.ctid FROM holdfast.payment_outbox_queue AS queue
             WHERE queue.lease_token IS NULL AND queue.crash_count = 0
               AND queue.next_attempt_at <= moment AND queue.next_attempt_at >= due_after
             ORDER BY queue.next_attempt_at, queue.outbox_id
             LIMIT batch_size FOR UPDATE SKIP LOCKED);
    END IF;
    IF cardinality(places) = 0 THEN
        -- One that comes back. Some may have ended with this crash, so a few are tried, but not all.
        FOR looked IN 1..10 LOOP
            SELECT repaired.outbox_id, repaired.state INTO expired
              FROM holdfast.repair_expired_leases(1, claim_outbox_batch.worker_id) AS repaired;
            EXIT WHEN expired.outbox_id IS NULL;
            IF expired.state = 'ZOMBIE_REQUEUE' THEN
                places := ARRAY(SELECT queue.ctid FROM holdfast.payment_outbox_queue AS queue
                                 WHERE queue.outbox_id = expired.outbox_id);
                EXIT;
            END IF;
        END LOOP;
    END IF;
    IF cardinality(places) = 0 THEN
        RETURN;
    END IF;

    fence := nextval('holdfast.payment_outbox_epochs');
    RETURN QUERY
    WITH taken AS (
        -- By place and not by id: a join on the id would be planned for a tenth of the table, and be one hash of it.
        UPDATE holdfast.payment_outbox_queue AS queue
           SET claimed_by = claim_outbox_batch.worker_id, lease_token = token, lease_expires_at = until
         WHERE queue.ctid = ANY (places)
        RETURNING queue.outbox_id, queue.attempt_count, queue.next_attempt_at, queue.crash_count)
    SELECT taken.outbox_id, instruction.instruction_id, instruction.participant_id, instruction.sequence_id,
           instruction.idempotency_key, instruction.rail_type, instruction.payload, taken.attempt_count,
           instruction.created_at, taken.next_attempt_at, claim_outbox_batch.worker_id, token, until, fence, taken.crash_count
      FROM taken
      LEFT JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_instructions AS found
                          WHERE found.outbox_id = taken.outbox_id LIMIT 1) AS instruction ON true
     ORDER BY taken.next_attempt_at, taken.outbox_id;
END
$$;

-- Prolongs the claim that `token` proves on those of `outbox_ids` that it still holds, to `seconds` from now, and says which. One
-- that is not in the answer is lost: stop working on it.
CREATE FUNCTION holdfast.extend_outbox_lease(outbox_ids uuid[], token uuid, seconds integer)
RETURNS TABLE (outbox_id uuid, lease_expires_at timestamptz)
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
    IF seconds IS NULL OR seconds NOT BETWEEN 1 AND 86400 THEN
        RAISE EXCEPTION 'seconds is %, and must be from 1 to 86400', seconds USING ERRCODE = '22023';
    END IF;
    -- In the order that completion locks in: neither ever waits for the other in a circle. IS NOT DISTINCT FROM and IS TRUE, here
    -- and there, are for the planner: it must take the row by its id, and no other index that these would fit.
    places := ARRAY(
        SELECT locked.place
          FROM (SELECT DISTINCT outbox_id FROM unnest(outbox_ids) AS given (outbox_id) ORDER BY 1) AS named
         CROSS JOIN LATERAL (SELECT queue.ctid AS place FROM holdfast.payment_outbox_queue AS queue
                              WHERE queue.outbox_id = named.outbox_id AND queue.lease_token IS NOT DISTINCT FROM token
                              LIMIT 1 FOR UPDATE) AS locked);
    moment := clock_timestamp();
    RETURN QUERY
    UPDATE holdfast.payment_outbox_queue AS queue SET lease_expires_at = moment + make_interval(secs => seconds)
     WHERE queue.ctid = ANY (places) AND (queue.lease_expires_at > moment) IS TRUE
    RETURNING queue.outbox_id, queue.lease_expires_at;
END
$$;

-- Gives rows back that were not tried: a deploy, an open breaker, a worker that was interrupted. No attempt is counted, and a
-- crash in the past is not forgotten. They are due after `delay_ms`. Says which; one that is not in the answer was lost.
CREATE FUNCTION holdfast.release_outbox(outbox_ids uuid[], token uuid, delay_ms integer DEFAULT 0)
RETURNS TABLE (outbox_id uuid, next_attempt_at timestamptz)
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
    IF delay_ms IS NULL OR delay_ms NOT BETWEEN 0 AND 604800000 THEN
        RAISE EXCEPTION 'delay_ms is %, and must be from 0 to 604800000', delay_ms USING ERRCODE = '22023';
    END IF;
    places := ARRAY(
        SELECT locked.place
          FROM (SELECT DISTINCT outbox_id FROM unnest(outbox_ids) AS given (outbox_id) ORDER BY 1) AS named
         CROSS JOIN LATERAL (SELECT queue.ctid AS place FROM holdfast.payment_outbox_queue AS queue
                              WHERE queue.outbox_id = named.outbox_id AND queue.lease_token IS NOT DISTINCT FROM token
                              LIMIT 1 FOR UPDATE) AS locked);
    moment := clock_timestamp();
    RETURN QUERY
    UPDATE holdfast.payment_outbox_queue AS queue
       SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL,
           next_attempt_at = moment + make_interval(secs => delay_ms / 1000.0)
     WHERE queue.ctid = ANY (places) AND (queue.lease_expires_at > moment) IS TRUE
    RETURNING queue.outbox_id, queue.next_attempt_at;
END
$$;

REVOKE ALL ON FUNCTION holdfast.repair_expired_leases(integer, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.claim_outbox_batch(integer, text, integer, timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.extend_outbox_lease(uuid[], uuid, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.release_outbox(uuid[], uuid, integer) FROM PUBLIC;
