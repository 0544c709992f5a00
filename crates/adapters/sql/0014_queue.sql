-- The items of the performance queue, for several nodes that share a database.
--
-- A node has steps taken by these functions and decides by the rules that every store has; each function is one statement's way
-- there and back, and gives the item as it is afterwards. What must never break is here:
--   * an escrow belongs to at most one item that has not ended     UNIQUE queue_items_linked
--   * a state has what belongs to it, and nothing else             CHECK queue_items_stage
--   * the two parts of a partial end add up to the escrow          CHECK queue_items_split
--   * an item ends once, and an ended item never changes           TRIGGER queue_items_guarded
--   * what an item is does not change, and none is deleted         the same
--
-- Amounts are millionths of a credit. Moments are milliseconds since 1970. Names sort by their bytes, as the program sorts them.

SET LOCAL ROLE symphony_owner;

CREATE TABLE holdfast.queue_items (
    id         text COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 64),
    user_id    text COLLATE "C" NOT NULL,
    payee      text COLLATE "C" NOT NULL,
    escrow     text COLLATE "C" NOT NULL,
    amount     bigint NOT NULL CHECK (amount >= 0),
    feature    text COLLATE "C" NOT NULL,
    priority   integer NOT NULL,
    -- The smaller goes first.
    precedence bigint NOT NULL GENERATED ALWAYS AS (-(priority::bigint)) STORED,
    -- As the caller wrote it: it comes back byte by byte.
    metadata   text CHECK (octet_length(metadata) <= 1024),
    queued_at  bigint NOT NULL CHECK (queued_at >= 0),
    state      text COLLATE "C" NOT NULL,
    drop_at    bigint CHECK (drop_at >= 0),
    started_at bigint CHECK (started_at >= 0),
    ended_at   bigint CHECK (ended_at >= 0),
    cause      text COLLATE "C",
    settled    bigint CHECK (settled >= 0),
    refunded   bigint CHECK (refunded >= 0),
    -- Who put it, or took it up: a call whose answer was lost is known by it when it is made again.
    token      text COLLATE "C" NOT NULL CHECK (octet_length(token) = 32),
    CONSTRAINT queue_items_stage CHECK (CASE state
        WHEN 'queued' THEN started_at IS NULL AND ended_at IS NULL
        WHEN 'in_progress' THEN started_at IS NOT NULL AND drop_at IS NULL AND ended_at IS NULL
        WHEN 'finished' THEN ended_at IS NOT NULL AND drop_at IS NULL
        WHEN 'abandoned' THEN ended_at IS NOT NULL AND drop_at IS NULL
        WHEN 'partial' THEN ended_at IS NOT NULL AND drop_at IS NULL
        ELSE false END),
    CONSTRAINT queue_items_cause CHECK ((cause IS NOT NULL) = (state IN ('abandoned', 'partial'))),
    CONSTRAINT queue_items_split CHECK (CASE state
        WHEN 'partial' THEN settled IS NOT NULL AND refunded IS NOT NULL AND settled + refunded = amount
        ELSE settled IS NULL AND refunded IS NULL END)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX queue_items_linked ON holdfast.queue_items (escrow) WHERE ended_at IS NULL;
COMMENT ON INDEX holdfast.queue_items_linked IS 'An escrow belongs to at most one item that has not ended.';
CREATE INDEX queue_items_of_escrow ON holdfast.queue_items (escrow);
-- These stay as small as the queue is.
CREATE INDEX queue_items_open ON holdfast.queue_items (precedence, queued_at, id) WHERE ended_at IS NULL;
CREATE INDEX queue_items_open_of_payee ON holdfast.queue_items (payee, precedence, queued_at, id) WHERE ended_at IS NULL;
CREATE INDEX queue_items_waiting ON holdfast.queue_items (payee, precedence, queued_at, id) WHERE state = 'queued';
CREATE INDEX queue_items_dropped ON holdfast.queue_items (drop_at, id) WHERE drop_at IS NOT NULL;
CREATE UNIQUE INDEX queue_items_taken ON holdfast.queue_items (token) WHERE state = 'in_progress';
-- These grow with what has been.
CREATE INDEX queue_items_ended ON holdfast.queue_items (state, ended_at DESC, id) WHERE ended_at IS NOT NULL;
CREATE INDEX queue_items_ended_of_payee ON holdfast.queue_items (payee, state, ended_at DESC, id) WHERE ended_at IS NOT NULL;

CREATE FUNCTION holdfast.guard_queue_item() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'APPEND_ONLY: queue items are not deleted' USING ERRCODE = 'P0001';
    END IF;
    IF OLD.ended_at IS NOT NULL THEN
        RAISE EXCEPTION 'INVALID_STATE: % has ended, and stays as it is', OLD.id USING ERRCODE = 'P7003';
    END IF;
    IF (OLD.id, OLD.user_id, OLD.payee, OLD.escrow, OLD.amount, OLD.feature, OLD.priority, OLD.queued_at)
       IS DISTINCT FROM (NEW.id, NEW.user_id, NEW.payee, NEW.escrow, NEW.amount, NEW.feature, NEW.priority, NEW.queued_at)
       OR OLD.metadata IS DISTINCT FROM NEW.metadata
       OR (OLD.started_at IS NOT NULL AND OLD.started_at IS DISTINCT FROM NEW.started_at)
    THEN
        RAISE EXCEPTION 'APPEND_ONLY: what % is does not change', OLD.id USING ERRCODE = 'P0001';
    END IF;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION holdfast.guard_queue_item() FROM PUBLIC;
CREATE TRIGGER queue_items_guarded BEFORE UPDATE OR DELETE ON holdfast.queue_items
    FOR EACH ROW EXECUTE FUNCTION holdfast.guard_queue_item();
CREATE TRIGGER queue_items_not_emptied BEFORE TRUNCATE ON holdfast.queue_items
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.guard_queue_item();
-- Always: not even a session that plays a replica gets by.
ALTER TABLE holdfast.queue_items ENABLE ALWAYS TRIGGER queue_items_guarded;
ALTER TABLE holdfast.queue_items ENABLE ALWAYS TRIGGER queue_items_not_emptied;

-- Puts an item and gives it; or gives the one that has its id; or the one that has its escrow. `token` tells which.
CREATE FUNCTION holdfast.queue_put(
    item_id text, user_id text, payee text, escrow text, amount bigint, feature text, priority integer, metadata text,
    queued_at bigint, drop_at bigint, token text)
RETURNS SETOF holdfast.queue_items
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    FOR attempt IN 1..100 LOOP
        RETURN QUERY
        INSERT INTO holdfast.queue_items AS item
               (id, user_id, payee, escrow, amount, feature, priority, metadata, queued_at, state, drop_at, token)
        VALUES (item_id, queue_put.user_id, queue_put.payee, queue_put.escrow, queue_put.amount, queue_put.feature,
                queue_put.priority, queue_put.metadata, queue_put.queued_at, 'queued', queue_put.drop_at, queue_put.token)
        ON CONFLICT DO NOTHING RETURNING item.*;
        IF FOUND THEN
            RETURN;
        END IF;
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item WHERE item.id = item_id;
        IF FOUND THEN
            RETURN;
        END IF;
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item
                      WHERE item.escrow = queue_put.escrow AND item.ended_at IS NULL;
        IF FOUND THEN
            RETURN;
        END IF;
        -- The one that was in the way has ended since.
    END LOOP;
    RAISE EXCEPTION 'STALE: the escrow of % changes hands all the time', item_id USING ERRCODE = '40001';
END
$$;

-- Has an item taken up if it waits, and gives it as it is then. `token` tells who took it up.
CREATE FUNCTION holdfast.queue_start(item_id text, moment bigint, token text) RETURNS SETOF holdfast.queue_items
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    UPDATE holdfast.queue_items AS item
       SET state = 'in_progress', started_at = moment, drop_at = NULL, token = queue_start.token
     WHERE item.id = item_id AND item.state = 'queued' RETURNING item.*;
    IF NOT FOUND THEN
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item WHERE item.id = item_id;
    END IF;
END
$$;

-- Has the first of a payee's waiting items taken up that is not overdue and that nobody else is about to take up. A call made
-- again with its token gives what it took the first time.
CREATE FUNCTION holdfast.queue_start_next(of_payee text, moment bigint, token text) RETURNS SETOF holdfast.queue_items
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    next text;
BEGIN
    RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item
                  WHERE item.token = queue_start_next.token AND item.state = 'in_progress';
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT item.id INTO next FROM holdfast.queue_items AS item
     WHERE item.payee = of_payee AND item.state = 'queued' AND (item.drop_at IS NULL OR item.drop_at > moment)
     ORDER BY item.precedence, item.queued_at, item.id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE holdfast.queue_items AS item
       SET state = 'in_progress', started_at = moment, drop_at = NULL, token = queue_start_next.token
     WHERE item.id = next RETURNING item.*;
END
$$;

-- Ends an item if it has not ended, and gives it as it is then.
CREATE FUNCTION holdfast.queue_end(
    item_id text, new_state text, new_cause text, new_settled bigint, new_refunded bigint, moment bigint)
RETURNS SETOF holdfast.queue_items
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN QUERY
    UPDATE holdfast.queue_items AS item
       SET state = new_state, cause = new_cause, settled = new_settled, refunded = new_refunded, ended_at = moment,
           drop_at = NULL
     WHERE item.id = item_id AND item.ended_at IS NULL RETURNING item.*;
    IF NOT FOUND THEN
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item WHERE item.id = item_id;
    END IF;
END
$$;

-- Items that have not ended by rank, or those that ended so, the last first; after the one that is named, if it has a place there.
CREATE FUNCTION holdfast.queue_list(of_payee text, in_state text, after_id text, batch_size integer)
RETURNS SETOF holdfast.queue_items
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    place     holdfast.queue_items;
    first     bigint := -9223372036854775808;
    last      bigint := 9223372036854775807;
    has_ended boolean := coalesce(in_state NOT IN ('queued', 'in_progress'), false);
BEGIN
    SELECT item.* INTO place FROM holdfast.queue_items AS item WHERE item.id = after_id;
    IF has_ended AND of_payee IS NULL THEN
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item
         WHERE item.state = in_state AND item.ended_at IS NOT NULL AND item.ended_at <= coalesce(place.ended_at, last)
           AND (item.ended_at < coalesce(place.ended_at, last) OR place.ended_at IS NULL OR item.id > place.id)
         ORDER BY item.ended_at DESC, item.id LIMIT batch_size;
    ELSIF has_ended THEN
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item
         WHERE item.payee = of_payee AND item.state = in_state AND item.ended_at IS NOT NULL
           AND item.ended_at <= coalesce(place.ended_at, last)
           AND (item.ended_at < coalesce(place.ended_at, last) OR place.ended_at IS NULL OR item.id > place.id)
         ORDER BY item.ended_at DESC, item.id LIMIT batch_size;
    ELSIF of_payee IS NULL THEN
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item
         WHERE item.ended_at IS NULL AND (in_state IS NULL OR item.state = in_state)
           AND (item.precedence, item.queued_at, item.id)
               > (coalesce(place.precedence, first), coalesce(place.queued_at, first), coalesce(place.id, ''))
         ORDER BY item.precedence, item.queued_at, item.id LIMIT batch_size;
    ELSE
        RETURN QUERY SELECT item.* FROM holdfast.queue_items AS item
         WHERE item.ended_at IS NULL AND item.payee = of_payee AND (in_state IS NULL OR item.state = in_state)
           AND (item.precedence, item.queued_at, item.id)
               > (coalesce(place.precedence, first), coalesce(place.queued_at, first), coalesce(place.id, ''))
         ORDER BY item.precedence, item.queued_at, item.id LIMIT batch_size;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION
    holdfast.queue_put(text, text, text, text, bigint, text, integer, text, bigint, bigint, text),
    holdfast.queue_start(text, bigint, text), holdfast.queue_start_next(text, bigint, text),
    holdfast.queue_end(text, text, text, bigint, bigint, bigint), holdfast.queue_list(text, text, text, integer)
    FROM PUBLIC;

-- Who may do what: a node takes steps and reads; an auditor reads. Nobody has INSERT, UPDATE, DELETE or TRUNCATE.
GRANT EXECUTE ON FUNCTION
    holdfast.queue_put(text, text, text, text, bigint, text, integer, text, bigint, bigint, text),
    holdfast.queue_start(text, bigint, text), holdfast.queue_start_next(text, bigint, text),
    holdfast.queue_end(text, text, text, bigint, bigint, bigint), holdfast.queue_list(text, text, text, integer)
    TO symphony_ledger;
GRANT SELECT ON holdfast.queue_items TO symphony_ledger, symphony_auditor;
