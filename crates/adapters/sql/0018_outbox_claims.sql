-- A lease is a row of a claim and not of the queue: what is claimed moves out of the queue, and comes back only if it is to
-- be tried again.
--
--   payment_outbox_queue    what waits and nobody has                                             (narrow, hot)
--   payment_outbox_claims   what somebody has: up to fifty in a row, with one lease               (few rows, hot)
--
-- Why: a lease that stands in the queue makes every job two dead rows there and four dead index entries, and 100,000 of them
-- 15 MB. A claim that takes its rows out leaves one dead row each and touches no index; a fiftieth of a row in the claims
-- does the rest. What is held is not in the index that claims walk, so it costs them nothing, however much it is. And no look
-- is needed whether somebody else has a row: it can be taken out once, at every level of isolation.
--
-- Why fifty and not all of a claim in one row: completing some of a row's writes the rest of it anew, so it must be short;
-- and a row of fifty is below what PostgreSQL moves to a table beside.
--
-- Whoever changes a claim's row has locked it, and locks several in the order of claim_id. Between the queue and the claims
-- nobody waits: claims skip what is locked, and what comes back is inserted.
--
-- In use: the functions have the signatures and the results that they had, so workers may go on through this; what they hold
-- now they hold afterwards, with the same tokens.

SET LOCAL ROLE symphony_owner;

LOCK TABLE holdfast.payment_outbox_queue IN ACCESS EXCLUSIVE MODE;

CREATE TABLE holdfast.payment_outbox_claims (
    claim_id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease_expires_at timestamptz NOT NULL,
    lease_token      uuid NOT NULL,
    -- Of each of them: whom a crash suspects is claimed alone.
    crash_count      smallint NOT NULL,
    claimed_by       text NOT NULL,
    outbox_ids       uuid[] NOT NULL,
    -- When each of them was due, for those who look.
    next_attempts_at timestamptz[] NOT NULL,
    CONSTRAINT payment_outbox_claims_hold_some CHECK (
        cardinality(outbox_ids) BETWEEN 1 AND 50 AND cardinality(next_attempts_at) = cardinality(outbox_ids))
) WITH (
    -- A row lives as long as a claim, and the table has a handful of pages: they are to stay so few.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000
);
COMMENT ON TABLE holdfast.payment_outbox_claims IS
    'Who has what: a lease is whole, or it is not there. What is in here is in no other row of it and not in the queue.';
CREATE INDEX payment_outbox_claims_token ON holdfast.payment_outbox_claims (lease_token, claim_id);
CREATE INDEX payment_outbox_claims_expiring ON holdfast.payment_outbox_claims (lease_expires_at, claim_id);
CREATE INDEX payment_outbox_claims_claimed_by ON holdfast.payment_outbox_claims (claimed_by);

-- What is held at this moment stays held.
WITH held AS (
    DELETE FROM holdfast.payment_outbox_queue AS queue WHERE queue.lease_token IS NOT NULL RETURNING queue.*
), placed AS (
    SELECT held.*, row_number() OVER (
               PARTITION BY held.lease_token, held.claimed_by, held.lease_expires_at, held.crash_count
               ORDER BY held.next_attempt_at, held.outbox_id) AS place
      FROM held
)
INSERT INTO holdfast.payment_outbox_claims
    (lease_expires_at, lease_token, crash_count, claimed_by, outbox_ids, next_attempts_at)
SELECT placed.lease_expires_at, placed.lease_token, placed.crash_count, placed.claimed_by,
       array_agg(placed.outbox_id ORDER BY placed.place), array_agg(placed.next_attempt_at ORDER BY placed.place)
  FROM placed
 GROUP BY placed.lease_token, placed.claimed_by, placed.lease_expires_at, placed.crash_count, (placed.place - 1) / 50;

-- The same columns. How often one in somebody's hands was tried is counted: its attempts are the truth, and nobody keeps a
-- cache of them.
CREATE OR REPLACE VIEW holdfast.payment_outbox_pending AS
SELECT waiting.outbox_id, instruction.instruction_id, instruction.participant_id, instruction.sequence_id,
       instruction.idempotency_key, instruction.rail_type, instruction.payload, waiting.attempt_count,
       instruction.created_at, waiting.next_attempt_at, waiting.claimed_by, waiting.lease_token, waiting.lease_expires_at,
       waiting.crash_count, instruction.replay_of
  FROM (SELECT queue.outbox_id, queue.attempt_count, queue.next_attempt_at, NULL::text AS claimed_by,
               NULL::uuid AS lease_token, NULL::timestamptz AS lease_expires_at, queue.crash_count
          FROM holdfast.payment_outbox_queue AS queue
         UNION ALL
        SELECT held.outbox_id, (SELECT coalesce(max(tried.attempt_no), 0) FROM holdfast.payment_outbox_attempts AS tried
                                 WHERE tried.outbox_id = held.outbox_id),
               held.next_attempt_at, claim.claimed_by, claim.lease_token, claim.lease_expires_at, claim.crash_count
          FROM holdfast.payment_outbox_claims AS claim
         CROSS JOIN LATERAL unnest(claim.outbox_ids, claim.next_attempts_at) AS held (outbox_id, next_attempt_at)) AS waiting
  LEFT JOIN holdfast.payment_outbox_instructions AS instruction USING (outbox_id);

DROP INDEX holdfast.payment_outbox_queue_claimable, holdfast.payment_outbox_queue_suspect,
           holdfast.payment_outbox_queue_expiring, holdfast.payment_outbox_queue_claimed_by;
ALTER TABLE holdfast.payment_outbox_queue
    DROP CONSTRAINT payment_outbox_queue_lease_is_whole,
    DROP COLUMN claimed_by, DROP COLUMN lease_token, DROP COLUMN lease_expires_at;
CREATE INDEX payment_outbox_queue_claimable ON holdfast.payment_outbox_queue (next_attempt_at, outbox_id)
    WHERE crash_count = 0;
CREATE INDEX payment_outbox_queue_suspect ON holdfast.payment_outbox_queue (next_attempt_at, outbox_id)
    WHERE crash_count > 0;

-- Which row of the claims has each of these, at its place; NULL for one that nobody has, or not with this token. Of one that
-- is named twice, at the first. Without tokens: whoever has it. As of the statement that asks, since it is STABLE.
--
-- One hash of what is held beside what was asked for: a loop over both would be square, so that is what is off here. The hash
-- is switched on by name, because settings come down from whoever calls.
CREATE FUNCTION holdfast.find_outbox_claims(outbox_ids uuid[], lease_tokens uuid[] DEFAULT NULL) RETURNS bigint[]
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = on SET enable_nestloop = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    held_by bigint[];
BEGIN
    IF lease_tokens IS NULL THEN
        RETURN ARRAY(
            SELECT held.claim_id FROM unnest(outbox_ids) WITH ORDINALITY AS named (outbox_id, place)
              LEFT JOIN (SELECT claim.claim_id, unnest(claim.outbox_ids) AS outbox_id
                           FROM holdfast.payment_outbox_claims AS claim) AS held ON held.outbox_id = named.outbox_id
             ORDER BY named.place);
    END IF;
    held_by := ARRAY(
        SELECT held.claim_id FROM unnest(outbox_ids, lease_tokens) WITH ORDINALITY AS named (outbox_id, lease_token, place)
          LEFT JOIN (SELECT claim.claim_id, claim.lease_token, unnest(claim.outbox_ids) AS outbox_id
                       FROM holdfast.payment_outbox_claims AS claim
                      WHERE claim.lease_token = ANY (lease_tokens)) AS held
            ON held.outbox_id = named.outbox_id AND held.lease_token = named.lease_token
         ORDER BY named.place);
    IF (SELECT count(*) < cardinality(outbox_ids) FROM (
            SELECT FROM unnest(outbox_ids) AS named (outbox_id) GROUP BY named.outbox_id) AS different)
    THEN
        held_by := ARRAY(
            SELECT CASE WHEN row_number() OVER (PARTITION BY named.outbox_id, named.claim_id ORDER BY named.place) = 1
                        THEN named.claim_id END
              FROM unnest(outbox_ids, held_by) WITH ORDINALITY AS named (outbox_id, claim_id, place)
             ORDER BY named.place);
    END IF;
    RETURN held_by;
END
$$;
REVOKE ALL ON FUNCTION holdfast.find_outbox_claims(uuid[], uuid[]) FROM PUBLIC;

-- Locks the rows of the claims that have these, and says which has each as it is under the lock, as find_outbox_claims; NULL
-- also for one whose lease has run out, or that `worker_id` has not, if one is given.
CREATE FUNCTION holdfast.lock_outbox_claims(worker_id text, outbox_ids uuid[], lease_tokens uuid[]) RETURNS bigint[]
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    held_by bigint[];
    missing bigint[];
    locked  bigint[] := '{}';
    lost    bigint[];
BEGIN
    IF cardinality(outbox_ids) >= 50 THEN
        -- So many are most of what their tokens hold: to lock all of it costs less than to look which.
        locked := ARRAY(SELECT claim.claim_id FROM holdfast.payment_outbox_claims AS claim
                         WHERE claim.lease_token = ANY (lease_tokens) ORDER BY claim.claim_id FOR UPDATE);
    END IF;
    LOOP
        held_by := holdfast.find_outbox_claims(outbox_ids, lease_tokens);
        missing := ARRAY(SELECT DISTINCT claim_id FROM unnest(held_by) AS held (claim_id)
                          WHERE claim_id <> ALL (locked) ORDER BY 1);
        EXIT WHEN cardinality(missing) = 0;
        -- Then looked at again: meanwhile some may have been completed, and some are in a new row if a part of a row was
        -- prolonged. A new row has a higher number, so the order is kept.
        PERFORM FROM unnest(missing) WITH ORDINALITY AS named (claim_id, place)
          CROSS JOIN LATERAL (SELECT FROM holdfast.payment_outbox_claims AS claim
                               WHERE claim.claim_id = named.claim_id LIMIT 1 FOR UPDATE) AS claim;
        locked := locked || missing;
    END LOOP;
    lost := ARRAY(
        SELECT claim.claim_id FROM unnest(locked) AS named (claim_id)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_claims AS found
                              WHERE found.claim_id = named.claim_id LIMIT 1) AS claim
         WHERE claim.lease_expires_at <= clock_timestamp()
            OR (lock_outbox_claims.worker_id IS NOT NULL AND claim.claimed_by <> lock_outbox_claims.worker_id));
    FOR place IN 1..cardinality(lost) LOOP
        held_by := array_replace(held_by, lost[place], NULL);
    END LOOP;
    RETURN held_by;
END
$$;
REVOKE ALL ON FUNCTION holdfast.lock_outbox_claims(text, uuid[], uuid[]) FROM PUBLIC;

-- Takes these out of the rows of the claims that have them, which are locked; a row that holds nothing any more goes.
CREATE FUNCTION holdfast.leave_outbox_claims(outbox_ids uuid[], held_by bigint[]) RETURNS void
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    places tid[];
    parts  tid[];
BEGIN
    SELECT array_agg(claim.ctid) FILTER (WHERE named.leaving = claim.holding),
           array_agg(claim.ctid) FILTER (WHERE named.leaving < claim.holding)
      INTO places, parts
      FROM (SELECT claim_id, count(*) AS leaving FROM unnest(held_by) AS held (claim_id)
             WHERE claim_id IS NOT NULL GROUP BY claim_id) AS named
     CROSS JOIN LATERAL (SELECT found.ctid, cardinality(found.outbox_ids) AS holding FROM holdfast.payment_outbox_claims AS found
                          WHERE found.claim_id = named.claim_id LIMIT 1) AS claim;
    IF places IS NOT NULL THEN
        DELETE FROM holdfast.payment_outbox_claims AS claim WHERE claim.ctid = ANY (places);
    END IF;
    IF parts IS NOT NULL THEN
        UPDATE holdfast.payment_outbox_claims AS claim
           SET (outbox_ids, next_attempts_at) = (
               SELECT array_agg(held.outbox_id ORDER BY held.place), array_agg(held.next_attempt_at ORDER BY held.place)
                 FROM unnest(claim.outbox_ids, claim.next_attempts_at) WITH ORDINALITY
                   AS held (outbox_id, next_attempt_at, place)
                -- A hash of them; none is NULL.
                WHERE held.outbox_id NOT IN (SELECT named.outbox_id
                                               FROM unnest(leave_outbox_claims.outbox_ids, held_by) AS named (outbox_id, claim_id)
                                              WHERE named.claim_id IS NOT NULL))
         WHERE claim.ctid = ANY (parts);
    END IF;
END
$$;
REVOKE ALL ON FUNCTION holdfast.leave_outbox_claims(uuid[], bigint[]) FROM PUBLIC;

-- Lets the lease that `token` proves on those of `outbox_ids` that it still holds end after `pause`, and says which and when.
-- A row of which only some are named is parted: the others keep their end.
CREATE FUNCTION holdfast.prolong_outbox_claims(outbox_ids uuid[], token uuid, pause interval)
RETURNS TABLE (outbox_id uuid, lease_expires_at timestamptz)
    LANGUAGE plpgsql VOLATILE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    held_by bigint[] := holdfast.lock_outbox_claims(
        NULL, outbox_ids, array_fill(token, ARRAY[coalesce(cardinality(outbox_ids), 0)]));
    until   timestamptz := clock_timestamp() + pause;
    named   record;
    parts   bigint[] := '{}';
BEGIN
    FOR named IN
        SELECT claim_id, count(*) AS asked FROM unnest(held_by) AS held (claim_id)
         WHERE claim_id IS NOT NULL GROUP BY claim_id ORDER BY claim_id
    LOOP
        UPDATE holdfast.payment_outbox_claims AS claim SET lease_expires_at = until
         WHERE claim.claim_id = named.claim_id AND cardinality(claim.outbox_ids) = named.asked;
        IF NOT FOUND THEN
            parts := parts || named.claim_id;
        END IF;
    END LOOP;
    IF cardinality(parts) > 0 THEN
        INSERT INTO holdfast.payment_outbox_claims
            (lease_expires_at, lease_token, crash_count, claimed_by, outbox_ids, next_attempts_at)
        SELECT until, token, claim.crash_count, claim.claimed_by, part.outbox_ids, part.next_attempts_at
          FROM unnest(parts) AS parted (claim_id)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_claims AS found
                              WHERE found.claim_id = parted.claim_id LIMIT 1) AS claim
         CROSS JOIN LATERAL (
            SELECT array_agg(held.outbox_id ORDER BY held.place) AS outbox_ids,
                   array_agg(held.next_attempt_at ORDER BY held.place) AS next_attempts_at
              FROM unnest(claim.outbox_ids, claim.next_attempts_at) WITH ORDINALITY
                AS held (outbox_id, next_attempt_at, place)
             -- IS TRUE, so that it is a hash and no loop.
             WHERE (held.outbox_id IN (SELECT unnest(prolong_outbox_claims.outbox_ids))) IS TRUE) AS part;
        PERFORM holdfast.leave_outbox_claims(
            array_agg(held.outbox_id), array_agg(CASE WHEN held.claim_id = ANY (parts) THEN held.claim_id END))
           FROM unnest(outbox_ids, held_by) AS held (outbox_id, claim_id);
    END IF;
    RETURN QUERY
    SELECT held.outbox_id, until FROM unnest(outbox_ids, held_by) AS held (outbox_id, claim_id)
     WHERE held.claim_id IS NOT NULL;
END
$$;
REVOKE ALL ON FUNCTION holdfast.prolong_outbox_claims(uuid[], uuid, interval) FROM PUBLIC;

-- As it was. Of a row of the claims it takes as many as it still may, the rest is left for the next one.
CREATE OR REPLACE FUNCTION holdfast.repair_expired_leases(batch_size integer, worker_id text)
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
    room         integer := batch_size;
    claims       bigint[];
    ids          uuid[];
    held_by      bigint[];
BEGIN
    IF batch_size IS NULL OR batch_size NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'batch_size is %, and must be from 1 to 10000', batch_size USING ERRCODE = '22023';
    END IF;
    IF worker_id IS NULL OR length(worker_id) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'worker_id must have from 1 to 200 characters' USING ERRCODE = '22023';
    END IF;

    WHILE room > 0 LOOP
        -- Locked by a statement of its own: the next one then sees the rows, and their attempts, as they are under the lock.
        claims := ARRAY(
            SELECT claim.claim_id FROM holdfast.payment_outbox_claims AS claim
             WHERE claim.lease_expires_at <= moment
             ORDER BY claim.lease_expires_at, claim.claim_id
             LIMIT (room + 49) / 50 FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(claims) = 0;
        SELECT array_agg(taken.outbox_id), array_agg(taken.claim_id) INTO ids, held_by
          FROM (SELECT held.outbox_id, claim.claim_id
                  FROM unnest(claims) WITH ORDINALITY AS named (claim_id, place)
                 CROSS JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_claims AS found
                                      WHERE found.claim_id = named.claim_id LIMIT 1) AS claim
                 CROSS JOIN LATERAL unnest(claim.outbox_ids) WITH ORDINALITY AS held (outbox_id, place)
                 ORDER BY named.place, held.place LIMIT room) AS taken;
        room := room - cardinality(ids);

        RETURN QUERY
        WITH lost AS MATERIALIZED (
            SELECT held.outbox_id, claim.claimed_by, claim.lease_token, claim.crash_count, history.attempt_no, history.is_over,
                   CASE WHEN history.attempt_no >= attempts_max THEN 'its attempts are used up'
                        WHEN claim.crash_count + 1 >= crashes_max THEN 'it has cost too many workers' END AS given_up
              FROM unnest(ids, held_by) AS held (outbox_id, claim_id)
             CROSS JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_claims AS found
                                  WHERE found.claim_id = held.claim_id LIMIT 1) AS claim
             CROSS JOIN LATERAL (
                SELECT coalesce(max(tried.attempt_no), 0) + 1 AS attempt_no,
                       coalesce(bool_or(tried.state IN ('DISPATCHED', 'FAILED')), false) AS is_over
                  FROM holdfast.payment_outbox_attempts AS tried WHERE tried.outbox_id = held.outbox_id) AS history
        ), recorded AS (
            INSERT INTO holdfast.payment_outbox_attempts
                (outbox_id, attempt_no, state, worker_id, lease_token, at, error_code, error_text)
            SELECT lost.outbox_id, lost.attempt_no,
                   CASE WHEN lost.given_up IS NULL THEN 'ZOMBIE_REQUEUE' ELSE 'FAILED' END::holdfast.payment_outbox_state,
                   lost.claimed_by, lost.lease_token, moment, 'LEASE_EXPIRED',
                   concat_ws('; ', 'the lease ran out', lost.given_up, 'found by ' || repair_expired_leases.worker_id)
              FROM lost WHERE NOT lost.is_over
        ), again AS (
            INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at, attempt_count, crash_count)
            SELECT lost.outbox_id, moment + interval '1 second', lost.attempt_no, lost.crash_count + 1
              FROM lost WHERE NOT lost.is_over AND lost.given_up IS NULL
        )
        SELECT lost.outbox_id,
               CASE WHEN lost.is_over THEN 'TERMINAL_CONFLICT' WHEN lost.given_up IS NULL THEN 'ZOMBIE_REQUEUE' ELSE 'FAILED' END,
               lost.attempt_no, lost.claimed_by
          FROM lost;
        PERFORM holdfast.leave_outbox_claims(ids, held_by);
    END LOOP;
END
$$;

-- As it was, and: the rows leave the queue for the claims.
CREATE OR REPLACE FUNCTION holdfast.claim_outbox_batch(
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
     WHERE queue.crash_count > 0 AND queue.next_attempt_at <= moment
     ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1;
    IF suspect_due IS NOT NULL THEN
        SELECT queue.next_attempt_at INTO healthy_due FROM holdfast.payment_outbox_queue AS queue
         WHERE queue.crash_count = 0 AND queue.next_attempt_at <= moment AND queue.next_attempt_at >= due_after
         ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1;
        IF healthy_due IS NULL OR suspect_due <= healthy_due THEN
            places := ARRAY(
                SELECT queue.ctid FROM holdfast.payment_outbox_queue AS queue
                 WHERE queue.crash_count > 0 AND queue.next_attempt_at <= moment
                 ORDER BY queue.next_attempt_at, queue.outbox_id
                 LIMIT 1 FOR UPDATE SKIP LOCKED);
        END IF;
    END IF;
    IF cardinality(places) = 0 THEN
        places := ARRAY(
            SELECT queue.ctid FROM holdfast.payment_outbox_queue AS queue
             WHERE queue.crash_count = 0 AND queue.next_attempt_at <= moment AND queue.next_attempt_at >= due_after
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
        DELETE FROM holdfast.payment_outbox_queue AS queue WHERE queue.ctid = ANY (places)
        RETURNING queue.outbox_id, queue.attempt_count, queue.next_attempt_at, queue.crash_count
    ), placed AS MATERIALIZED (
        SELECT taken.*, row_number() OVER (ORDER BY taken.next_attempt_at, taken.outbox_id) AS place FROM taken
    ), leased AS (
        INSERT INTO holdfast.payment_outbox_claims
            (lease_expires_at, lease_token, crash_count, claimed_by, outbox_ids, next_attempts_at)
        SELECT until, token, max(placed.crash_count), claim_outbox_batch.worker_id,
               array_agg(placed.outbox_id), array_agg(placed.next_attempt_at)
          FROM placed GROUP BY (placed.place - 1) / 50
    )
    SELECT placed.outbox_id, instruction.instruction_id, instruction.participant_id, instruction.sequence_id,
           instruction.idempotency_key, instruction.rail_type, instruction.payload, placed.attempt_count,
           instruction.created_at, placed.next_attempt_at, claim_outbox_batch.worker_id, token, until, fence, placed.crash_count
      FROM placed
      LEFT JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_instructions AS found
                          WHERE found.outbox_id = placed.outbox_id LIMIT 1) AS instruction ON true
     ORDER BY placed.place;
END
$$;

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.extend_outbox_lease(outbox_ids uuid[], token uuid, seconds integer)
RETURNS TABLE (outbox_id uuid, lease_expires_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF seconds IS NULL OR seconds NOT BETWEEN 1 AND 86400 THEN
        RAISE EXCEPTION 'seconds is %, and must be from 1 to 86400', seconds USING ERRCODE = '22023';
    END IF;
    RETURN QUERY SELECT * FROM holdfast.prolong_outbox_claims(outbox_ids, token, make_interval(secs => seconds));
END
$$;

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.set_outbox_lease(outbox_ids uuid[], token uuid, lease_ms bigint)
RETURNS TABLE (outbox_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF lease_ms IS NULL OR lease_ms NOT BETWEEN 0 AND 86400000 THEN
        RAISE EXCEPTION 'lease_ms is %, and must be from 0 to 86400000', lease_ms USING ERRCODE = '22023';
    END IF;
    RETURN QUERY
    SELECT prolonged.outbox_id
      FROM holdfast.prolong_outbox_claims(outbox_ids, token, make_interval(secs => lease_ms / 1000.0)) AS prolonged;
END
$$;

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.release_outbox(outbox_ids uuid[], token uuid, delay_ms integer DEFAULT 0)
RETURNS TABLE (outbox_id uuid, next_attempt_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    held_by bigint[];
    moment  timestamptz;
BEGIN
    IF delay_ms IS NULL OR delay_ms NOT BETWEEN 0 AND 604800000 THEN
        RAISE EXCEPTION 'delay_ms is %, and must be from 0 to 604800000', delay_ms USING ERRCODE = '22023';
    END IF;
    held_by := holdfast.lock_outbox_claims(
        NULL, outbox_ids, array_fill(token, ARRAY[coalesce(cardinality(outbox_ids), 0)]));
    moment := clock_timestamp();
    RETURN QUERY
    INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at, attempt_count, crash_count)
    SELECT held.outbox_id, moment + make_interval(secs => delay_ms / 1000.0), history.attempts, claim.crash_count
      FROM unnest(outbox_ids, held_by) AS held (outbox_id, claim_id)
     CROSS JOIN LATERAL (SELECT found.crash_count FROM holdfast.payment_outbox_claims AS found
                          WHERE found.claim_id = held.claim_id LIMIT 1) AS claim
     CROSS JOIN LATERAL (SELECT coalesce(max(tried.attempt_no), 0) AS attempts FROM holdfast.payment_outbox_attempts AS tried
                          WHERE tried.outbox_id = held.outbox_id) AS history
    RETURNING outbox_id, next_attempt_at;
    PERFORM holdfast.leave_outbox_claims(outbox_ids, held_by);
END
$$;

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.complete_outbox_batch(
    worker_id text, outbox_ids uuid[], lease_tokens uuid[], states text[], latencies_ms integer[] DEFAULT NULL,
    error_codes text[] DEFAULT NULL, error_texts text[] DEFAULT NULL, responses jsonb[] DEFAULT NULL,
    retry_delays_ms integer[] DEFAULT NULL)
RETURNS TABLE (ordinal integer, outbox_id uuid, status text, attempt_no integer, recorded_state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    attempts_max CONSTANT integer := 20;
    asked        integer := coalesce(cardinality(outbox_ids), 0);
    moment       timestamptz;
    held_by      bigint[];
BEGIN
    IF asked <> coalesce(cardinality(lease_tokens), 0) OR asked <> coalesce(cardinality(states), 0)
        OR asked <> coalesce(cardinality(latencies_ms), asked) OR asked <> coalesce(cardinality(error_codes), asked)
        OR asked <> coalesce(cardinality(error_texts), asked) OR asked <> coalesce(cardinality(responses), asked)
        OR asked <> coalesce(cardinality(retry_delays_ms), asked)
    THEN
        RAISE EXCEPTION 'the arrays have different lengths' USING ERRCODE = '22023';
    END IF;
    IF asked = 0 THEN
        RETURN;
    END IF;

    -- Under this lock nobody else ends what is ours: the next statement sees the attempts as they are. Without it, max + 1
    -- made 428 duplicates in 2,585. Whatever has no good state is nobody's here; nor is anything if we have no name.
    held_by := holdfast.lock_outbox_claims(coalesce(complete_outbox_batch.worker_id, ''), outbox_ids, ARRAY(
        SELECT CASE WHEN named.state IN ('DISPATCHED', 'FAILED', 'RETRYABLE') THEN named.lease_token END
          FROM unnest(lease_tokens, states) WITH ORDINALITY AS named (lease_token, state, place) ORDER BY named.place));
    moment := clock_timestamp();

    RETURN QUERY
    WITH decided AS MATERIALIZED (
        SELECT claim.*, history.attempt_no, history.is_over,
               CASE WHEN claim.asked_state = 'RETRYABLE' AND history.attempt_no >= attempts_max THEN 'FAILED'
                    ELSE claim.asked_state END AS state
          FROM unnest(held_by, outbox_ids, lease_tokens, states, latencies_ms, error_codes, error_texts, responses,
                      retry_delays_ms) WITH ORDINALITY
            AS claim (claim_id, outbox_id, lease_token, asked_state, latency_ms, error_code, error_text, response,
                      retry_delay_ms, ordinal)
         CROSS JOIN LATERAL (
            SELECT coalesce(max(tried.attempt_no), 0) + 1 AS attempt_no,
                   coalesce(bool_or(tried.state IN ('DISPATCHED', 'FAILED')), false) AS is_over
              FROM holdfast.payment_outbox_attempts AS tried WHERE tried.outbox_id = claim.outbox_id) AS history
         WHERE claim.claim_id IS NOT NULL
    ), recorded AS (
        INSERT INTO holdfast.payment_outbox_attempts
            (outbox_id, attempt_no, state, worker_id, lease_token, at, latency_ms, error_code, error_text, response)
        SELECT decided.outbox_id, decided.attempt_no, decided.state::holdfast.payment_outbox_state,
               complete_outbox_batch.worker_id, decided.lease_token, moment,
               CASE WHEN decided.latency_ms >= 0 THEN decided.latency_ms END,
               left(decided.error_code, 200), left(decided.error_text, 2000), decided.response
          FROM decided WHERE NOT decided.is_over
    ), again AS (
        -- An attempt that ended in order clears the row of suspicion: it did not bring its worker down.
        INSERT INTO holdfast.payment_outbox_queue (outbox_id, next_attempt_at, attempt_count, crash_count)
        SELECT decided.outbox_id, moment + make_interval(secs => least(greatest(coalesce(
                   decided.retry_delay_ms, 1000), 0), 604800000) / 1000.0), decided.attempt_no, 0
          FROM decided WHERE NOT decided.is_over AND decided.state = 'RETRYABLE'
    )
    SELECT decided.ordinal::integer, decided.outbox_id,
           CASE WHEN decided.is_over THEN 'TERMINAL_CONFLICT' ELSE decided.state END,
           CASE WHEN NOT decided.is_over THEN decided.attempt_no END, CASE WHEN NOT decided.is_over THEN decided.state END
      FROM decided;
    PERFORM holdfast.leave_outbox_claims(outbox_ids, held_by);

    IF array_position(held_by, NULL) IS NOT NULL THEN
        RETURN QUERY
        SELECT named.ordinal::integer, named.outbox_id,
               CASE WHEN named.state IS NULL OR named.state NOT IN ('DISPATCHED', 'FAILED', 'RETRYABLE') THEN 'INVALID_STATE'
                    WHEN before.attempt_no IS NOT NULL THEN 'ALREADY_RECORDED'
                    ELSE 'LEASE_LOST' END,
               before.attempt_no, before.state::text
          FROM unnest(outbox_ids, lease_tokens, states, held_by) WITH ORDINALITY
            AS named (outbox_id, lease_token, state, claim_id, ordinal)
          LEFT JOIN LATERAL (
             SELECT tried.attempt_no, tried.state FROM holdfast.payment_outbox_attempts AS tried
              WHERE tried.outbox_id = named.outbox_id AND tried.lease_token = named.lease_token
                AND tried.worker_id = complete_outbox_batch.worker_id
                -- What repair wrote about this claim is no completion: it is how the claim was lost.
                AND tried.error_code IS DISTINCT FROM 'LEASE_EXPIRED'
              ORDER BY tried.attempt_no LIMIT 1) AS before ON true
         WHERE named.claim_id IS NULL;
    END IF;
END
$$;

-- As it was. What somebody has is not in the queue.
CREATE OR REPLACE FUNCTION holdfast.reschedule_outbox(outbox_ids uuid[], delays_ms bigint[])
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
                              WHERE queue.outbox_id = named.outbox_id LIMIT 1 FOR UPDATE) AS locked);
    moment := clock_timestamp();
    RETURN QUERY
    UPDATE holdfast.payment_outbox_queue AS queue
       SET next_attempt_at = moment + make_interval(secs => least(greatest(coalesce(
               delays_ms[array_position(outbox_ids, queue.outbox_id)], 0), 0), 3155760000000) / 1000.0)
     WHERE queue.ctid = ANY (places)
    RETURNING queue.outbox_id;
END
$$;

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.next_outbox_due() RETURNS bigint
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN ceil(EXTRACT(epoch FROM least(
        (SELECT queue.next_attempt_at FROM holdfast.payment_outbox_queue AS queue
          WHERE queue.crash_count = 0 ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1),
        (SELECT queue.next_attempt_at FROM holdfast.payment_outbox_queue AS queue
          WHERE queue.crash_count > 0 ORDER BY queue.next_attempt_at, queue.outbox_id LIMIT 1),
        (SELECT claim.lease_expires_at FROM holdfast.payment_outbox_claims AS claim
          ORDER BY claim.lease_expires_at, claim.claim_id LIMIT 1)) - clock_timestamp()) * 1000)::bigint;
END
$$;

-- As it was. One statement sees the queue and the claims at one moment, or what is just being claimed would be in neither.
CREATE OR REPLACE FUNCTION holdfast.describe_outbox(outbox_ids uuid[]) RETURNS SETOF holdfast.payment_outbox_standing
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
           CASE WHEN queue.outbox_id IS NOT NULL THEN 'DUE' WHEN claim.claim_id IS NOT NULL THEN 'LEASED' ELSE 'DEAD' END,
           ceil(EXTRACT(epoch FROM coalesce(claim.lease_expires_at, queue.next_attempt_at) - moment) * 1000)::bigint,
           claim.claimed_by
      FROM unnest(outbox_ids, holdfast.find_outbox_claims(outbox_ids)) WITH ORDINALITY AS named (outbox_id, claim_id, place)
      LEFT JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_queue AS found
                          WHERE found.outbox_id = named.outbox_id LIMIT 1) AS queue ON true
      LEFT JOIN LATERAL (SELECT * FROM holdfast.payment_outbox_claims AS found
                          WHERE found.claim_id = named.claim_id LIMIT 1) AS claim ON true
      LEFT JOIN LATERAL (SELECT found.outbox_id FROM holdfast.payment_outbox_dead_letters AS found
                          WHERE found.outbox_id = named.outbox_id LIMIT 1) AS dead ON true
      LEFT JOIN LATERAL (SELECT found.idempotency_key, found.payload FROM holdfast.payment_outbox_instructions AS found
                          WHERE found.outbox_id = named.outbox_id LIMIT 1) AS instruction ON true
      LEFT JOIN LATERAL (SELECT tried.attempt_no, tried.error_text FROM holdfast.payment_outbox_attempts AS tried
                          WHERE tried.outbox_id = named.outbox_id ORDER BY tried.attempt_no DESC LIMIT 1) AS last ON true
     WHERE queue.outbox_id IS NOT NULL OR claim.claim_id IS NOT NULL OR dead.outbox_id IS NOT NULL
     ORDER BY named.place;
END
$$;

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.list_outbox(which text, after_key text, batch_size integer)
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
            SELECT waiting.outbox_id
              FROM ((SELECT queue.outbox_id FROM holdfast.payment_outbox_queue AS queue
                      WHERE queue.outbox_id > after ORDER BY queue.outbox_id LIMIT batch_size)
                    UNION ALL
                    (SELECT held.outbox_id FROM holdfast.payment_outbox_claims AS claim
                      CROSS JOIN LATERAL unnest(claim.outbox_ids) AS held (outbox_id)
                      WHERE held.outbox_id > after ORDER BY held.outbox_id LIMIT batch_size)) AS waiting
             ORDER BY waiting.outbox_id LIMIT batch_size));
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

-- As it was.
CREATE OR REPLACE FUNCTION holdfast.count_outbox(OUT pending bigint, OUT dead bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
    SELECT (SELECT count(*) FROM holdfast.payment_outbox_queue)
           + (SELECT coalesce(sum(cardinality(claim.outbox_ids)), 0) FROM holdfast.payment_outbox_claims AS claim),
           (SELECT count(*) FROM holdfast.payment_outbox_dead_letters)
$$;

-- As it was. What somebody has is in no row of the queue, and is neither dead.
CREATE OR REPLACE FUNCTION holdfast.replay_outbox_key(idempotency_key text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    head  uuid := holdfast.last_outbox_round(replay_outbox_key.idempotency_key);
    tries integer;
BEGIN
    PERFORM FROM holdfast.payment_outbox_queue AS queue WHERE queue.outbox_id = head FOR UPDATE;
    IF FOUND THEN
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

-- As it was. A round that has not ended waits or is in somebody's hands; its end is looked for, because that is by one index.
CREATE OR REPLACE FUNCTION holdfast.owe_payment_outbox_batch(
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
                   (round.head IS NOT NULL AND ended.is_over IS NULL) OR dead.is_open IS NOT NULL AS is_open
              FROM unnest(participant_ids, idempotency_keys, made_at_ms) WITH ORDINALITY
                AS named (participant_id, idempotency_key, made_at_ms, place)
              LEFT JOIN LATERAL (
                SELECT known.outbox_id AS head FROM holdfast.payment_outbox_instructions AS known
                 WHERE known.idempotency_key = named.idempotency_key
                   AND known.participant_id IS NOT DISTINCT FROM named.participant_id
                 ORDER BY known.sequence_id DESC LIMIT 1) AS round ON true
              -- Not EXISTS: that may be planned as a hash of the whole table (61 ms for a put at 100,000 pending, against 1).
              LEFT JOIN LATERAL (SELECT true AS is_over FROM holdfast.payment_outbox_attempts AS tried
                                  WHERE tried.outbox_id = round.head AND tried.state IN ('DISPATCHED', 'FAILED')
                                  LIMIT 1) AS ended ON true
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
