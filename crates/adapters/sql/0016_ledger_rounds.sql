-- Rounds cost less: what is opened is locked and read at once, what is moved is found by its place, and an owner's history is pages
-- of offsets in place of an index over all entries (which was half of what an entry cost to write).
--
--   ledger_owners.recent  the offsets of an owner's newest entries, in order: the page that is being written
--   ledger_histories      an owner's pages that are full: written once, never changed
--
-- An owner's entries are those of the pages in the order of first_offset, and then those of `recent`. Both change under the owner's
-- lock, by the function that writes the entries.
--
-- The functions take other rows than before: a node that does not know them is told so by the database, and writes nothing.

SET LOCAL ROLE symphony_owner;

ALTER TABLE holdfast.ledger_owners ADD COLUMN recent bigint[] NOT NULL DEFAULT '{}';
CREATE TABLE holdfast.ledger_histories (
    owner        text COLLATE "C" NOT NULL,
    first_offset bigint NOT NULL CHECK (first_offset > 0),
    first_at     bigint NOT NULL,
    -- At least 32, but for the last page of each owner who was there before there were pages.
    offsets      bigint[] NOT NULL,
    PRIMARY KEY (owner, first_offset),
    CONSTRAINT ledger_histories_begins CHECK (cardinality(offsets) > 0 AND offsets[1] = first_offset)
);
COMMENT ON TABLE holdfast.ledger_histories IS
    'The offsets of each owner''s entries, a page a row; the newest are in ledger_owners.recent.';
INSERT INTO holdfast.ledger_histories
SELECT numbered.owner, min(numbered.entry_offset), min(numbered.at), array_agg(numbered.entry_offset ORDER BY numbered.entry_offset)
  FROM (SELECT owner, entry_offset, at, (row_number() OVER (PARTITION BY owner ORDER BY entry_offset) - 1) / 32 AS page
          FROM holdfast.ledger_entries) AS numbered
 GROUP BY numbered.owner, numbered.page;
CREATE TRIGGER ledger_histories_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON holdfast.ledger_histories
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_change();
ALTER TABLE holdfast.ledger_histories ENABLE ALWAYS TRIGGER ledger_histories_append_only;
DROP INDEX holdfast.ledger_entries_of_owner;

-- As before (0009), with other rows:
--   owner   available, held, open_holds, last_offset, entries, last_at, how many are recent; body is the end of the owner's chain;
--           place is where the row is
--   block   the first of 8,192 offsets that are this batch's alone, and the moment
-- What is locked is read as it stands once it is locked: a row that was made while the locks were waited for is not among them, and
-- making it again will be refused.
DROP FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]);
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
                     cardinality(locked.recent)],
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
        RETURN QUERY SELECT found.what, found.name, found.numbers, found.body, NULL::tid
          FROM holdfast.ledger_rows('{}', ledger_open.lives, ledger_open.keys, '{}', '{}') AS found
         WHERE found.what <> 'moment';
    END IF;
    IF cardinality(ledger_open.in_doubt) > 0 THEN
        RETURN QUERY SELECT 'done', '', ARRAY[entry.entry_offset], NULL::bytea, NULL::tid
          FROM holdfast.ledger_entries AS entry WHERE entry.entry_offset = ANY (ledger_open.in_doubt);
    END IF;
    what := 'block';
    name := '';
    numbers := ARRAY[nextval('holdfast.ledger_blocks') * 8192, (extract(epoch FROM clock_timestamp()) * 1000)::bigint];
    RETURN NEXT;
END
$$;

-- What all of a batch's entries together do to an owner. `place` and `seen` are where the row was and the last entry that was seen
-- of it when the batch was decided; NULL and 0 if it is new. `records` are the offsets of the entries, in order; `turns` says that
-- the page of recent ones is full, and a new one begins with them.
CREATE TYPE holdfast.ledger_moved_owner AS (
    owner text, place tid, seen bigint, available bigint, held bigint, escrow bigint, paid bigint, revenue bigint, treasury bigint,
    opens integer, entries bigint, last_offset bigint, last_at bigint, chain bytea, records bigint[], turns boolean);

-- As before (0010), with those lives that begin apart from those that go on. `turns` says whether a page of any owner does.
DROP FUNCTION holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_new_owner[], holdfast.ledger_new_life[],
    holdfast.ledger_new_payee[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[]);
DROP TYPE holdfast.ledger_new_owner;
CREATE FUNCTION holdfast.ledger_admit(
    entries holdfast.ledger_new_entry[], owners holdfast.ledger_moved_owner[], turns boolean,
    begun holdfast.ledger_new_life[], moved holdfast.ledger_new_life[],
    payees holdfast.ledger_new_payee[], budgets holdfast.ledger_new_budget[], obligations holdfast.ledger_obligation[])
RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, holdfast, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    found_there bigint;
    made        bigint;
    agrees      boolean;
BEGIN
    SELECT (sums.available, sums.held, sums.escrow, sums.paid, sums.revenue, sums.treasury, sums.entries, sums.paid)
           IS NOT DISTINCT FROM
           (said.available, said.held, said.escrow, said.paid, said.revenue, said.treasury, said.entries,
            CASE WHEN cardinality(ledger_admit.payees) > 0
                 THEN (SELECT sum(new.paid) FROM unnest(ledger_admit.payees) AS new) ELSE 0 END)
           AND said.entries = said.records
      INTO agrees
      FROM (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, count(*) AS entries
              FROM unnest(ledger_admit.entries)) AS sums,
           (SELECT sum(available) AS available, sum(held) AS held, sum(escrow) AS escrow, sum(paid) AS paid,
                   sum(revenue) AS revenue, sum(treasury) AS treasury, sum(entries) AS entries, sum(cardinality(records)) AS records
              FROM unnest(ledger_admit.owners)) AS said;
    IF agrees IS NOT TRUE THEN
        RAISE EXCEPTION 'UNBALANCED: the balances are not what the entries say' USING ERRCODE = 'P7102';
    END IF;

    INSERT INTO holdfast.ledger_entries
        (entry_offset, at, available, held, escrow, paid, revenue, treasury, kind, owner, life, key, payee, body, chain)
    SELECT new.entry_offset, new.at, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury,
           new.kind, new.owner, new.life, new.key, new.payee, new.body, new.chain
      FROM unnest(ledger_admit.entries) AS new
     -- In one order for all nodes: keys are locked as they are written.
     ORDER BY new.key COLLATE "C" NULLS LAST, new.entry_offset;

    IF ledger_admit.turns THEN
        INSERT INTO holdfast.ledger_histories (owner, first_offset, first_at, offsets)
        SELECT page.owner, page.recent[1], first.at, page.recent
          FROM unnest(ledger_admit.owners) AS new
         CROSS JOIN LATERAL (SELECT known.owner, known.recent FROM holdfast.ledger_owners AS known
                              WHERE known.owner = new.owner LIMIT 1) AS page
          -- A page that cannot be found is not left out: it has no moment, which the table refuses.
          LEFT JOIN LATERAL (SELECT known.at FROM holdfast.ledger_entries AS known
                              WHERE known.entry_offset = page.recent[1] LIMIT 1) AS first ON true
         WHERE new.turns AND new.seen > 0;
    END IF;
    -- By place, and not by name: whoever holds the lock knows it, and a join by name could be planned to walk the whole table.
    UPDATE holdfast.ledger_owners AS owner
       SET available = owner.available + new.available, held = owner.held + new.held,
           escrowed = owner.escrowed + new.escrow, paid = owner.paid + new.paid,
           revenue = owner.revenue + new.revenue, treasury = owner.treasury + new.treasury,
           open_holds = owner.open_holds + new.opens, entries = owner.entries + new.entries,
           last_offset = new.last_offset, last_at = new.last_at, chain = new.chain,
           recent = CASE WHEN ledger_admit.turns AND new.turns THEN new.records ELSE owner.recent || new.records END
      FROM unnest(ledger_admit.owners) AS new
     WHERE owner.ctid = new.place AND owner.owner = new.owner AND owner.last_offset = new.seen;
    GET DIAGNOSTICS found_there = ROW_COUNT;
    IF found_there < cardinality(ledger_admit.owners) THEN
        INSERT INTO holdfast.ledger_owners
        SELECT new.owner, new.available, new.held, new.escrow, new.paid, new.revenue, new.treasury, new.opens, new.entries,
               new.last_offset, new.last_at, new.chain, new.records
          FROM unnest(ledger_admit.owners) AS new WHERE new.seen = 0 ORDER BY new.owner COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF found_there + made < cardinality(ledger_admit.owners) THEN
            RAISE EXCEPTION 'STALE: an owner has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    IF cardinality(ledger_admit.moved) > 0 THEN
        -- By place too: see above.
        UPDATE holdfast.ledger_lives AS life
           SET state = new.state, held = new.held, expires_at = new.expires_at, records = life.records || new.records
          FROM unnest(ledger_admit.moved) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_lives AS known
                              WHERE known.life = new.life AND known.owner = new.owner
                                AND known.records[cardinality(known.records)] = new.seen LIMIT 1) AS found
         WHERE life.ctid = found.place;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        IF found_there < cardinality(ledger_admit.moved) THEN
            RAISE EXCEPTION 'STALE: a charge or an escrow has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;
    IF cardinality(ledger_admit.begun) > 0 THEN
        INSERT INTO holdfast.ledger_lives
        SELECT new.life, new.owner, new.state, new.held, new.expires_at, new.budgets, new.records
          FROM unnest(ledger_admit.begun) AS new ORDER BY new.life COLLATE "C";
    END IF;

    IF cardinality(ledger_admit.payees) > 0 THEN
        UPDATE holdfast.ledger_payees AS payee
           SET balance = payee.balance + new.paid, entries = payee.entries + new.entries, last_offset = new.last_offset
          FROM unnest(ledger_admit.payees) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_payees AS known
                              WHERE known.payee = new.payee AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE payee.ctid = found.place;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        INSERT INTO holdfast.ledger_payees
        SELECT new.payee, new.paid, new.entries, new.last_offset
          FROM unnest(ledger_admit.payees) AS new WHERE new.seen = 0 ORDER BY new.payee COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF found_there + made < cardinality(ledger_admit.payees) THEN
            RAISE EXCEPTION 'STALE: a payee has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    IF cardinality(ledger_admit.budgets) > 0 THEN
        UPDATE holdfast.ledger_budgets AS budget
           SET day = new.day, today = new.today, total = new.total, last_offset = new.last_offset
          FROM unnest(ledger_admit.budgets) AS new
         CROSS JOIN LATERAL (SELECT known.ctid AS place FROM holdfast.ledger_budgets AS known
                              WHERE known.budget = new.budget AND known.last_offset = new.seen LIMIT 1) AS found
         WHERE budget.ctid = found.place;
        GET DIAGNOSTICS found_there = ROW_COUNT;
        INSERT INTO holdfast.ledger_budgets
        SELECT new.budget, new.day, new.today, new.total, new.last_offset
          FROM unnest(ledger_admit.budgets) AS new WHERE new.seen = 0 ORDER BY new.budget COLLATE "C";
        GET DIAGNOSTICS made = ROW_COUNT;
        IF found_there + made < cardinality(ledger_admit.budgets) THEN
            RAISE EXCEPTION 'STALE: a budget has moved on' USING ERRCODE = 'P7101';
        END IF;
    END IF;

    -- What is owed is owed by the same commit.
    IF cardinality(ledger_admit.obligations) > 0 THEN
        PERFORM holdfast.owe_payment_outbox_batch(
            array_agg(owed.charge), array_agg(owed.owner), array_agg(owed.idempotency_key),
            array_agg('peer'::text), array_agg(owed.payload::jsonb), array_agg(owed.made_at))
          FROM unnest(ledger_admit.obligations) AS owed;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[], boolean,
    holdfast.ledger_new_life[], holdfast.ledger_new_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[],
    holdfast.ledger_obligation[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    holdfast.ledger_open(text[], text[], text[], text[], text[], bigint[]),
    holdfast.ledger_admit(holdfast.ledger_new_entry[], holdfast.ledger_moved_owner[], boolean, holdfast.ledger_new_life[],
        holdfast.ledger_new_life[], holdfast.ledger_new_payee[], holdfast.ledger_new_budget[], holdfast.ledger_obligation[])
    TO symphony_ledger;
GRANT SELECT ON holdfast.ledger_histories TO symphony_ledger, symphony_auditor;
