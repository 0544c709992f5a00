-- Completing: the end of an attempt, or of the row.

SET LOCAL ROLE symphony_owner;

-- Records what came of the attempts that `worker_id` claimed, each for itself; one bad row never takes the others with it.
-- The arrays go together by position. `states` are DISPATCHED (delivered), FAILED (given up) or RETRYABLE (to be tried again
-- after `retry_delays_ms`, a second if not said). The last five may be NULL as a whole. For each, in `ordinal` order, `status`:
--
--   DISPATCHED, FAILED, RETRYABLE  recorded as that; the twentieth attempt that would be RETRYABLE is recorded as FAILED
--   ALREADY_RECORDED               this very claim was completed before, and its reply was lost: `attempt_no` and
--                                  `recorded_state` say as what; nothing was changed now
--   LEASE_LOST                     the claim is not good any more; nothing was changed
--   TERMINAL_CONFLICT              the row had ended already, which these functions never let happen; it no longer waits
--   INVALID_STATE                  no such state; nothing was changed
CREATE FUNCTION holdfast.complete_outbox_batch(
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
    moment       timestamptz := clock_timestamp();
    -- What is ours, in the order in which it was locked.
    ours         record;
BEGIN
    IF asked <> coalesce(cardinality(lease_tokens), 0) OR asked <> coalesce(cardinality(states), 0)
        OR asked <> coalesce(cardinality(latencies_ms), asked) OR asked <> coalesce(cardinality(error_codes), asked)
        OR asked <> coalesce(cardinality(error_texts), asked) OR asked <> coalesce(cardinality(responses), asked)
        OR asked <> coalesce(cardinality(retry_delays_ms), asked)
    THEN
        RAISE EXCEPTION 'the arrays have different lengths' USING ERRCODE = '22023';
    END IF;

    -- Locked by a statement of its own, in the order of ids: two who complete never wait for each other in a circle, and the
    -- next statement sees the rows and their attempts as they are under the lock. Without the lock, max + 1 made 428
    -- duplicates in 2,585. (IS NOT DISTINCT FROM and IS TRUE leave only the index by id: by claimed_by it would be square.)
    SELECT array_agg(locked.place) AS places, array_agg(locked.ordinal) AS ordinals, array_agg(locked.outbox_id) AS ids,
           array_agg(locked.lease_token) AS tokens, array_agg(locked.state) AS states,
           array_agg(locked.latency_ms) AS latencies, array_agg(locked.error_code) AS codes,
           array_agg(locked.error_text) AS texts, array_agg(locked.response) AS responses,
           array_agg(locked.retry_delay_ms) AS delays
      INTO ours
      FROM (SELECT queue.place, named.*
              FROM (SELECT DISTINCT ON (outbox_id, lease_token) *
                      FROM unnest(outbox_ids, lease_tokens, states, latencies_ms, error_codes, error_texts, responses,
                                  retry_delays_ms) WITH ORDINALITY
                        AS given (outbox_id, lease_token, state, latency_ms, error_code, error_text, response,
                                  retry_delay_ms, ordinal)
                     WHERE state IN ('DISPATCHED', 'FAILED', 'RETRYABLE')
                     ORDER BY outbox_id, lease_token, ordinal) AS named
             CROSS JOIN LATERAL (
                SELECT found.ctid AS place FROM holdfast.payment_outbox_queue AS found
                 WHERE found.outbox_id = named.outbox_id
                   AND found.claimed_by IS NOT DISTINCT FROM complete_outbox_batch.worker_id
                   AND found.lease_token IS NOT DISTINCT FROM named.lease_token
                   AND (found.lease_expires_at > moment) IS TRUE
                 LIMIT 1 FOR UPDATE) AS queue) AS locked;

    RETURN QUERY
    WITH decided AS MATERIALIZED (
        SELECT claim.*, history.attempt_no, history.is_over,
               CASE WHEN claim.asked_state = 'RETRYABLE' AND history.attempt_no >= attempts_max THEN 'FAILED'
                    ELSE claim.asked_state END AS state
          FROM unnest(ours.places, ours.ordinals, ours.ids, ours.tokens, ours.states, ours.latencies, ours.codes, ours.texts,
                      ours.responses, ours.delays)
            AS claim (place, ordinal, outbox_id, lease_token, asked_state, latency_ms, error_code, error_text, response,
                      retry_delay_ms)
         CROSS JOIN LATERAL (
            SELECT coalesce(max(tried.attempt_no), 0) + 1 AS attempt_no,
                   coalesce(bool_or(tried.state IN ('DISPATCHED', 'FAILED')), false) AS is_over
              FROM holdfast.payment_outbox_attempts AS tried WHERE tried.outbox_id = claim.outbox_id) AS history
    ), recorded AS (
        INSERT INTO holdfast.payment_outbox_attempts
            (outbox_id, attempt_no, state, worker_id, lease_token, at, latency_ms, error_code, error_text, response)
        SELECT decided.outbox_id, decided.attempt_no, decided.state::holdfast.payment_outbox_state,
               complete_outbox_batch.worker_id, decided.lease_token, moment,
               CASE WHEN decided.latency_ms >= 0 THEN decided.latency_ms END,
               left(decided.error_code, 200), left(decided.error_text, 2000), decided.response
          FROM decided WHERE NOT decided.is_over
    ), ended AS (
        DELETE FROM holdfast.payment_outbox_queue AS queue
         WHERE queue.ctid = ANY (ARRAY(SELECT decided.place FROM decided
                                        WHERE decided.is_over OR decided.state <> 'RETRYABLE'))
    ), again AS (
        -- An attempt that ended in order clears the row of suspicion: it did not bring its worker down.
        UPDATE holdfast.payment_outbox_queue AS queue
           SET claimed_by = NULL, lease_token = NULL, lease_expires_at = NULL, crash_count = 0,
               next_attempt_at = moment + make_interval(secs => least(greatest(coalesce(
                   ours.delays[array_position(ours.ids, queue.outbox_id)], 1000), 0), 604800000) / 1000.0),
               attempt_count = greatest(queue.attempt_count, 1 + coalesce(
                   (SELECT max(tried.attempt_no) FROM holdfast.payment_outbox_attempts AS tried
                     WHERE tried.outbox_id = queue.outbox_id), 0))
         WHERE queue.ctid = ANY (ARRAY(SELECT decided.place FROM decided
                                        WHERE NOT decided.is_over AND decided.state = 'RETRYABLE'))
    )
    SELECT decided.ordinal::integer, decided.outbox_id,
           CASE WHEN decided.is_over THEN 'TERMINAL_CONFLICT' ELSE decided.state END,
           CASE WHEN NOT decided.is_over THEN decided.attempt_no END, CASE WHEN NOT decided.is_over THEN decided.state END
      FROM decided;

    IF coalesce(cardinality(ours.ordinals), 0) < asked THEN
        RETURN QUERY
        SELECT named.ordinal::integer, named.outbox_id,
               CASE WHEN named.state IS NULL OR named.state NOT IN ('DISPATCHED', 'FAILED', 'RETRYABLE') THEN 'INVALID_STATE'
                    WHEN before.attempt_no IS NOT NULL THEN 'ALREADY_RECORDED'
                    ELSE 'LEASE_LOST' END,
               before.attempt_no, before.state::text
          FROM unnest(outbox_ids, lease_tokens, states) WITH ORDINALITY AS named (outbox_id, lease_token, state, ordinal)
          LEFT JOIN LATERAL (
             SELECT tried.attempt_no, tried.state FROM holdfast.payment_outbox_attempts AS tried
              WHERE tried.outbox_id = named.outbox_id AND tried.lease_token = named.lease_token
                AND tried.worker_id = complete_outbox_batch.worker_id
                -- What repair wrote about this claim is no completion: it is how the claim was lost.
                AND tried.error_code IS DISTINCT FROM 'LEASE_EXPIRED'
              ORDER BY tried.attempt_no LIMIT 1) AS before ON true
         WHERE ours.ordinals IS NULL OR named.ordinal <> ALL (ours.ordinals);
    END IF;
END
$$;

CREATE TYPE holdfast.payment_outbox_completed AS (
    outbox_id uuid, attempt_no integer, state holdfast.payment_outbox_state, already_recorded boolean);

-- Records what came of one attempt, and says what was recorded; that a RETRYABLE became FAILED is seen there.
-- P7002 LEASE_LOST: the claim is not good any more. P7003: no such state. 23505 with the name of the terminal index: it had ended.
CREATE FUNCTION holdfast.complete_outbox_attempt(
    outbox_id uuid, worker_id text, lease_token uuid, state text, latency_ms integer DEFAULT NULL,
    error_code text DEFAULT NULL, error_text text DEFAULT NULL, response jsonb DEFAULT NULL,
    retry_delay_ms integer DEFAULT NULL)
RETURNS holdfast.payment_outbox_completed
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
DECLARE
    done record;
BEGIN
    SELECT * INTO STRICT done FROM holdfast.complete_outbox_batch(
        complete_outbox_attempt.worker_id, ARRAY[complete_outbox_attempt.outbox_id],
        ARRAY[complete_outbox_attempt.lease_token], ARRAY[complete_outbox_attempt.state],
        ARRAY[complete_outbox_attempt.latency_ms], ARRAY[complete_outbox_attempt.error_code],
        ARRAY[complete_outbox_attempt.error_text], ARRAY[complete_outbox_attempt.response],
        ARRAY[complete_outbox_attempt.retry_delay_ms]);
    CASE done.status
        WHEN 'INVALID_STATE' THEN
            RAISE EXCEPTION 'INVALID_STATE: an attempt does not end as %', coalesce(quote_literal(state), 'NULL')
                USING ERRCODE = 'P7003', HINT = 'complete it as DISPATCHED, FAILED or RETRYABLE';
        WHEN 'LEASE_LOST' THEN
            RAISE EXCEPTION 'LEASE_LOST: % is not leased to % with this token', complete_outbox_attempt.outbox_id, worker_id
                USING ERRCODE = 'P7002', HINT = 'drop it: it is due again, or somebody else has it';
        WHEN 'TERMINAL_CONFLICT' THEN
            RAISE EXCEPTION 'TERMINAL_CONFLICT: % had ended already', complete_outbox_attempt.outbox_id
                USING ERRCODE = '23505', SCHEMA = 'holdfast', TABLE = 'payment_outbox_attempts',
                      CONSTRAINT = 'payment_outbox_attempts_one_terminal_per_outbox';
        ELSE
            RETURN (done.outbox_id, done.attempt_no, done.recorded_state::holdfast.payment_outbox_state,
                    done.status = 'ALREADY_RECORDED')::holdfast.payment_outbox_completed;
    END CASE;
END
$$;

REVOKE ALL ON FUNCTION holdfast.complete_outbox_batch(
    text, uuid[], uuid[], text[], integer[], text[], text[], jsonb[], integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.complete_outbox_attempt(
    uuid, text, uuid, text, integer, text, text, jsonb, integer) FROM PUBLIC;
