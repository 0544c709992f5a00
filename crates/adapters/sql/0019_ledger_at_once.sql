-- Rounds at once: a node that knows how everything stands that its requests look at, because it was the last to write it, decides
-- without asking, and has what came of it admitted in one statement. What it was wrong about is refused by the guards that were
-- there before; then it asks, under locks.
--
-- For that, ledger_admit needs no locks of ledger_open: it takes them itself, in the same order (owners by name, payees, budgets,
-- keys), and says where the rows are that it wrote, and which offsets and which moment the next round can begin with.
--
--   ledger_owners.fence   raised when something in doubt was found not to have been done: it is not done later either

SET LOCAL ROLE symphony_owner;

ALTER TABLE holdfast.ledger_owners ADD COLUMN fence bigint NOT NULL DEFAULT 0;

DROP FUNCTION holdfast.ledger_look(text[], text[], text[], text[], text[]);
DROP FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]);
DROP FUNCTION holdfast.ledger_rows(text[], text[], text[], text[], text[]);

-- As before (0009), and where the rows of owners and lives are:
--   owner   available, held, open_holds, last_offset, entries, last_at, how many are recent, fence; body is the end of the chain
CREATE FUNCTION holdfast.ledger_rows(owners text[], lives text[], keys text[], payees text[], budgets text[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea, place tid)
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, holdfast, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(ledger_rows.owners) > 0 THEN
        RETURN QUERY
        SELECT 'owner', found.owner,
               ARRAY[found.available, found.held, found.open_holds, found.last_offset, found.entries, found.last_at,
                     cardinality(found.recent), found.fence],
               found.chain, found.place
          FROM (SELECT DISTINCT unnest(ledger_rows.owners) COLLATE "C") AS named (owner)
         CROSS JOIN LATERAL (SELECT known.*, known.ctid AS place FROM holdfast.ledger_owners AS known
                              WHERE known.owner = named.owner LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.lives) > 0 THEN
        RETURN QUERY
        SELECT 'life', found.life, ARRAY[entry.entry_offset], entry.body, found.place
          FROM unnest(ledger_rows.lives) AS named (life)
         CROSS JOIN LATERAL (SELECT known.*, known.ctid AS place FROM holdfast.ledger_lives AS known
                              WHERE known.life = named.life LIMIT 1) AS found
         CROSS JOIN LATERAL unnest(found.records) AS record (entry_offset)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known
                              WHERE known.entry_offset = record.entry_offset LIMIT 1) AS entry;
    END IF;
    IF cardinality(ledger_rows.keys) > 0 THEN
        RETURN QUERY
        SELECT 'key', found.key, ARRAY[found.entry_offset], found.body, NULL::tid
          FROM unnest(ledger_rows.keys) AS named (key)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_entries AS known WHERE known.key = named.key LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.payees) > 0 THEN
        RETURN QUERY
        SELECT 'payee', found.payee, ARRAY[found.balance, found.last_offset, found.entries], NULL::bytea, NULL::tid
          FROM unnest(ledger_rows.payees) AS named (payee)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_payees AS known WHERE known.payee = named.payee LIMIT 1) AS found;
    END IF;
    IF cardinality(ledger_rows.budgets) > 0 THEN
        RETURN QUERY
        SELECT 'budget', found.budget, ARRAY[found.day, found.today, found.total, found.last_offset], NULL::bytea, NULL::tid
          FROM (SELECT DISTINCT unnest(ledger_rows.budgets) COLLATE "C") AS named (budget)
         CROSS JOIN LATERAL (SELECT * FROM holdfast.ledger_budgets AS known WHERE known.budget = named.budget LIMIT 1) AS found;
    END IF;
    RETURN QUERY VALUES ('moment', '', ARRAY[(extract(epoch FROM clock_timestamp()) * 1000)::bigint], NULL::bytea, NULL::tid);
END
$$;

-- As before (0009).
CREATE FUNCTION holdfast.ledger_look(owners text[], lives text[], keys text[], payees text[], budgets text[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea, place tid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    of_lives record := holdfast.ledger_of_lives(ledger_look.lives);
BEGIN
    RETURN QUERY SELECT * FROM holdfast.ledger_rows(ledger_look.owners || of_lives.owners, ledger_look.lives,
        ledger_look.keys, ledger_look.payees, ledger_look.budgets || of_lives.budgets);
END
$$;

-- As before (0017), with the rows of ledger_rows.
CREATE FUNCTION holdfast.ledger_open(
    owners text[], lives text[], keys text[], payees text[], budgets text[], in_doubt bigint[])
RETURNS TABLE (what text, name text, numbers bigint[], body bytea, place tid)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    of_lives    record;
    all_owners  text[] := ledger_open.owners;
    all_budgets text[] := ledger_open.budgets;
BEGIN
    IF cardinality(ledger_open.lives) > 0 THEN
        of_lives := holdfast.ledger_of_lives(ledger_open.lives);
        all_owners := all_owners || of_lives.owners;
        all_budgets := all_budgets || of_lives.budgets;
    END IF;
    RETURN QUERY
        SELECT 'owner', locked.owner,
               ARRAY[locked.available, locked.held, locked.open_holds, locked.last_offset, locked.entries, locked.last_at,
                     cardinality(locked.recent), locked.fence],
               locked.chain, locked.ctid
          FROM holdfast.ledger_owners AS locked
         WHERE locked.owner = ANY (all_owners) ORDER BY locked.owner FOR NO KEY UPDATE;
    IF cardinality(ledger_open.payees) > 0 THEN
        RETURN QUERY
            SELECT 'payee', locked.payee, ARRAY[locked.balance, locked.last_offset, locked.entries], NULL::bytea, NULL::tid
              FROM holdfast.ledger_payees AS locked
             WHERE locked.payee = ANY (ledger_open.payees) ORDER BY locked.payee FOR NO KEY UPDATE;
    END IF;
    IF cardinality(all_budgets) > 0 THEN
        RETURN QUERY
            SELECT 'budget', locked.budget, ARRAY[locked.day, locked.today, locked.total, locked.last_offset],
                   NULL::bytea, NULL::tid
              FROM holdfast.ledger_budgets AS locked
             WHERE locked.budget = ANY (all_budgets) ORDER BY locked.budget FOR NO KEY UPDATE;
    END IF;

    -- Statements of their own see what was committed while it was waited for the locks.
    IF cardinality(ledger_open.lives) > 0 OR cardinality(ledger_open.keys) > 0 THEN
        RETURN QUERY SELECT found.what, found.name, found.numbers, found.body, found.place
          FROM holdfast.ledger_rows('{}', ledger_open.lives, ledger_open.keys, '{}', '{}') AS found
         WHERE found.what <> 'moment';
    END IF;
    IF cardinality(ledger_open.in_doubt) > 0 THEN
        RETURN QUERY SELECT 'done', '', ARRAY[entry.entry_offset], entry.chain, NULL::tid
          FROM holdfast.ledger_entries AS entry WHERE entry.entry_offset = ANY (ledger_open.in_doubt);
    END IF;
    what := 'block';
    name := '';
    numbers := ARRAY[nextval('holdfast.ledger_blocks') * 8192, (extract(epoch FROM clock_timestamp()) * 1000)::bigint];
    RETURN NEXT;
END
$$;

-- Sees to it that a batch with an entry of this owner, whose commit was not answered, has been admitted by now or never will be: who
-- is admitting it is waited for, and what comes later finds the fence raised. A name that is nobody's is passed over.
CREATE FUNCTION holdfast.ledger_fence(owner text) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    UPDATE holdfast.ledger_owners AS known SET fence = known.fence + 1 WHERE known.owner = ledger_fence.owner;
END
$$;

DROP FUNCTION holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[], boolean,
    holdfast.ledger_new_life[], holdfast.ledger_new_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[],
    holdfast.ledger_obligation[]);
-- As before (0016), with the fence that was seen, and with a place for lives that move.
ALTER TYPE holdfast.ledger_moved_owner ADD ATTRIBUTE fence bigint;
CREATE TYPE holdfast.ledger_moved_life AS (
    life text, place tid, seen bigint, owner text, state text, held bigint, expires_at bigint, records bigint[]);

-- As before (0016), in the order of locks, and in the order in which things are named: who names two things that others name too
-- does so in the order of their names. `decided_at` is the moment that the batch was begun with: of one that comes more than three
-- seconds later nobody knows any more what it was decided on. `turning` says how many pages are full.
--
-- Says where the rows are now of owners (those that were there before those that are new), of lives that began and of those that
-- moved, and what another batch can begin with: the first of 8,192 offsets that are its alone, and the moment.
CREATE FUNCTION holdfast.ledger_admit(
    decided_at bigint, entries holdfast.ledger_new_entry[], owners holdfast.ledger_moved_owner[], turning integer,
    begun holdfast.ledger_new_life[], moved holdfast.ledger_moved_life[],
    payees holdfast.ledger_new_payee[], budgets holdfast.ledger_new_budget[], obligations holdfast.ledger_obligation[],
    OUT owner_places tid[], OUT begun_places tid[], OUT moved_places tid[], OUT block bigint, OUT moment bigint)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_there bigint;
    turned      bigint;
    made        tid[];
    agrees      boolean;
BEGIN
    moment := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    IF moment - ledger_admit.decided_at > 3000 THEN
        RAISE EXCEPTION 'STALE: it was decided long ago' USING ERRCODE = 'P7101';
    END IF;
    SELECT (sums.available, sums.held, sums.escrow, sums.paid, sums.revenue, sums.treasury, sums.entries, sums.paid)
           IS NOT DISTINCT FROM
           (said.available, said.held, said.escrow, said.paid, said.revenue, said.treasury, said.entries,
            CASE WHEN cardinality(ledger_admit.payees) > 0
                 THEN (SELECT sum(new.paid) FROM unnest(ledger_admit.payees) AS new) ELSE 0 END)
           AND said.entries = said.records AND said.turning = ledger_admit.turning
      INTO agrees
      FROM (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, count(*) AS entries
              FROM unnest(ledger_admit.entries)) AS sums,
           (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, sum(entries) AS entries, sum(cardinality(records)) AS records,
                   count(*) FILTER (WHERE turns) AS turning
              FROM unnest(ledger_admit.owners)) AS said;
    IF agrees IS NOT TRUE THEN
        RAISE EXCEPTION 'UNBALANCED: the balances are not what the entries say' USING ERRCODE = 'P7102';
    END IF;

    -- By place, and not by name: whoever holds the lock, or was the last to write it, knows it, and a look by name is most of what
    -- this costs. (IS NOT DISTINCT FROM: no index can answer that, or it would be asked.) A page that is full is read where it
    -- was, and kept once the owner is locked.
    WITH there AS (
        UPDATE holdfast.ledger_owners AS owner
           SET available = owner.available + new.available, held = owner.held + new.held,
               escrowed = owner.escrowed + new.escrow, paid = owner.paid + new.paid,
               revenue = owner.revenue + new.revenue, treasury = owner.treasury + new.treasury,
               open_holds = owner.open_holds + new.opens, entries = owner.entries + new.entries,
               last_offset = new.last_offset, last_at = new.last_at, chain = new.chain,
               recent = CASE WHEN new.turns THEN new.records ELSE owner.recent || new.records END
          FROM unnest(ledger_admit.owners) AS new
          LEFT JOIN LATERAL (SELECT known.recent FROM holdfast.ledger_owners AS known
                              WHERE known.ctid = CASE WHEN new.turns THEN new.place END
                                AND known.owner IS NOT DISTINCT FROM new.owner AND known.last_offset = new.seen) AS page ON true
         WHERE owner.ctid = new.place AND owner.owner IS NOT DISTINCT FROM new.owner
           AND owner.last_offset = new.seen AND owner.fence = new.fence
        RETURNING owner.ctid AS place, owner.owner, page.recent
    ), turned AS (
        INSERT INTO holdfast.ledger_histories (owner, first_offset, first_at, offsets)
        SELECT there.owner, there.recent[1], first.at, there.recent
          FROM there
          -- A page that cannot be found is not left out: it has no moment, which the table refuses.
          LEFT JOIN LATERAL (SELECT known.at FROM holdfast.ledger_entries AS known
                              WHERE known.entry_offset = there.recent[1] LIMIT 1) AS first ON true
         WHERE there.recent IS NOT NULL)
    SELECT array_agg(place), count(*), count(recent) INTO owner_places, found_there, turned FROM there;
    IF turned < ledger_admit.turning THEN
        RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
    END IF;
    IF found_there < cardinality(ledger_admit.owners) THEN
        WITH made AS (
            INSERT INTO holdfast.ledger_owners
            SELECT new.owner, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury, new.opens, new.entries,
                   new.last_offset, new.last_at, new.chain, new.records, new.fence
              FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0
            RETURNING ctid AS place)
        SELECT array_agg(place), found_there + count(*) INTO made, found_there FROM made;
        IF found_there < cardinality(ledger_admit.owners) THEN
            RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
        END IF;
        owner_places := owner_places || made;
    END IF;

    IF cardinality(ledger_admit.payees) > 0 THEN
        UPDATE holdfast.ledger_payees AS payee
           SET balance = payee.balance + new.paid, entries = payee.entries + new.entries, last_offset = new.last_offset
          FROM unnest(ledger_admit.payees) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_payees AS known
                              WHERE known.payee = new.payee AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE payee.ctid = found.place AND payee.last_offset = new.seen;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        WITH made AS (
            INSERT INTO holdfast.ledger_payees
            SELECT new.payee, new.paid, new.entries, new.last_offset
              FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0
            RETURNING 1)
        SELECT found_there + count(*) INTO found_there FROM made;
        IF found_there < cardinality(ledger_admit.payees) THEN
            RAISE EXCEPTION 'STALE: a payee has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.budgets) > 0 THEN
        UPDATE holdfast.ledger_budgets AS budget
           SET day = new.day, today = new.today, total = new.total, last_offset = new.last_offset
          FROM unnest(ledger_admit.budgets) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_budgets AS known
                              WHERE known.budget = new.budget AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE budget.ctid = found.place AND budget.last_offset = new.seen;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        WITH made AS (
            INSERT INTO holdfast.ledger_budgets
            SELECT new.budget, new.day, new.today, new.total, new.last_offset
              FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0
            RETURNING 1)
        SELECT found_there + count(*) INTO found_there FROM made;
        IF found_there < cardinality(ledger_admit.budgets) THEN
            RAISE EXCEPTION 'STALE: a budget has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    -- Those with keys by their keys before the others: keys are locked as they are written.
    INSERT INTO holdfast.ledger_entries
        (entry_offset, at, available, held, escrow, paid, revenue, treasury, kind, owner, life, key, payee, body, chain)
    SELECT new.entry_offset, new.at, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury,
           new.kind, new.owner, new.life, new.key, new.payee, new.body, new.chain
      FROM unnest(ledger_admit.entries) AS new;

    IF cardinality(ledger_admit.moved) > 0 THEN
        WITH there AS (
            UPDATE holdfast.ledger_lives AS life
               SET state = new.state, held = new.held, expires_at = new.expires_at, records = life.records || new.records
              FROM unnest(ledger_admit.moved) AS new
             WHERE life.ctid = new.place AND life.life IS NOT DISTINCT FROM new.life AND life.owner = new.owner
               AND life.records[cardinality(life.records)] = new.seen
            RETURNING life.ctid AS place)
        SELECT array_agg(place), count(*) INTO moved_places, found_there FROM there;
        IF found_there < cardinality(ledger_admit.moved) THEN
            RAISE EXCEPTION 'STALE: a charge or an escrow has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.begun) > 0 THEN
        WITH made AS (
            INSERT INTO holdfast.ledger_lives
            SELECT new.life, new.owner, new.state, new.held, new.expires_at, new.budgets, new.records
              FROM unnest(ledger_admit.begun) AS new
            RETURNING ctid AS place)
        SELECT array_agg(place) INTO begun_places FROM made;
    END IF;

    -- What is owed is owed by the same commit.
    IF cardinality(ledger_admit.obligations) > 0 THEN
        PERFORM holdfast.owe_payment_outbox_batch(
            array_agg(owed.charge), array_agg(owed.owner), array_agg(owed.idempotency_key),
            array_agg('peer'::text), array_agg(owed.payload::jsonb), array_agg(owed.made_at))
          FROM unnest(ledger_admit.obligations) AS owed;
    END IF;
    block := nextval('holdfast.ledger_blocks') * 8192;
END
$$;

REVOKE ALL ON FUNCTION holdfast.ledger_rows(text[], text[], text[], text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_look(text[], text[], text[], text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_fence(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_admit(bigint, holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[], integer,
    holdfast.ledger_new_life[], holdfast.ledger_moved_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[],
    holdfast.ledger_obligation[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    holdfast.ledger_look(text[], text[], text[], text[], text[]),
    holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]),
    holdfast.ledger_fence(text),
    holdfast.ledger_admit(bigint, holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[], integer, holdfast.ledger_new_life[],
        holdfast.ledger_moved_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[])
    TO symphony_ledger;
