-- A reserve/commit ledger in PostgreSQL as a careful engineer would write it: one function and one round trip per operation.
-- Money moves by conditional UPDATE, so that no lock is held across a round trip; the hold's primary key makes each operation
-- idempotent; revenue is derived from the entries, so that no row is hot. `fillfactor` leaves room for updates in place (HOT).
-- Entries have no index: the hold they belong to already makes them unique, and an index would only slow the peer down.

CREATE TABLE account (
    id        bigint PRIMARY KEY,
    available bigint NOT NULL CHECK (available >= 0)
) WITH (fillfactor = 50);

CREATE TABLE hold (
    id        bigint PRIMARY KEY,
    payer     bigint NOT NULL,
    amount    bigint NOT NULL CHECK (amount > 0),
    committed bigint CHECK (committed BETWEEN 0 AND amount) -- NULL while the hold is open.
) WITH (fillfactor = 50);

CREATE TYPE leg AS ENUM ('reserved', 'earned', 'returned');

CREATE TABLE entry (
    hold   bigint NOT NULL,
    leg    leg    NOT NULL,
    payer  bigint NOT NULL,
    amount bigint NOT NULL
);

-- True if this call did it, false if an earlier one with the same body had; any other reuse of the id is refused.
CREATE FUNCTION reserve(p_payer bigint, p_hold bigint, p_amount bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO hold (id, payer, amount) VALUES (p_hold, p_payer, p_amount) ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND THEN
        PERFORM FROM hold WHERE id = p_hold AND payer = p_payer AND amount = p_amount;
        IF FOUND THEN RETURN false; END IF;
        RAISE EXCEPTION 'hold % exists with another body', p_hold;
    END IF;
    UPDATE account SET available = available - p_amount WHERE id = p_payer AND available >= p_amount;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'account % has too little', p_payer;
    END IF;
    INSERT INTO entry (hold, leg, payer, amount) VALUES (p_hold, 'reserved', p_payer, p_amount);
    RETURN true;
END $$;

CREATE FUNCTION commit(p_hold bigint, p_actual bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_payer bigint;
    v_rest  bigint;
BEGIN
    UPDATE hold SET committed = p_actual WHERE id = p_hold AND committed IS NULL AND amount >= p_actual
        RETURNING payer, amount - p_actual INTO v_payer, v_rest;
    IF NOT FOUND THEN
        PERFORM FROM hold WHERE id = p_hold AND committed = p_actual;
        IF FOUND THEN RETURN false; END IF;
        RAISE EXCEPTION 'hold % cannot be committed with %', p_hold, p_actual;
    END IF;
    IF v_rest = 0 THEN
        INSERT INTO entry (hold, leg, payer, amount) VALUES (p_hold, 'earned', v_payer, p_actual);
        RETURN true;
    END IF;
    UPDATE account SET available = available + v_rest WHERE id = v_payer;
    INSERT INTO entry (hold, leg, payer, amount)
        VALUES (p_hold, 'earned', v_payer, p_actual), (p_hold, 'returned', v_payer, v_rest);
    RETURN true;
END $$;

-- The batches are one transaction each and all or nothing, and return how many operations were new. They lock accounts in one
-- order: two of them would wait for each other in a circle otherwise.
CREATE FUNCTION reserve_batch(p_payers bigint[], p_holds bigint[], p_amounts bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_new    bigint;
    v_payers bigint;
    v_paid   bigint;
BEGIN
    PERFORM FROM account WHERE id = ANY (p_payers) ORDER BY id FOR NO KEY UPDATE;
    WITH asked AS (
        SELECT * FROM unnest(p_payers, p_holds, p_amounts) AS asked (payer, id, amount)
    ), fresh AS (
        INSERT INTO hold (id, payer, amount) SELECT id, payer, amount FROM asked ON CONFLICT (id) DO NOTHING
            RETURNING id, payer, amount
    ), due AS (
        SELECT payer, sum(amount)::bigint AS amount FROM fresh GROUP BY payer
    ), paid AS (
        UPDATE account SET available = account.available - due.amount FROM due
            WHERE account.id = due.payer AND account.available >= due.amount RETURNING 1
    ), written AS (
        INSERT INTO entry (hold, leg, payer, amount) SELECT id, leg 'reserved', payer, amount FROM fresh RETURNING 1
    )
    SELECT (SELECT count(*) FROM written), (SELECT count(*) FROM due), (SELECT count(*) FROM paid)
        INTO v_new, v_payers, v_paid;
    IF v_paid <> v_payers THEN
        RAISE EXCEPTION '% of % payers have too little', v_payers - v_paid, v_payers;
    END IF;
    IF v_new <> cardinality(p_holds) AND EXISTS (
        SELECT FROM unnest(p_payers, p_holds, p_amounts) AS asked (payer, id, amount) JOIN hold USING (id)
            WHERE (hold.payer, hold.amount) <> (asked.payer, asked.amount)
    ) THEN
        RAISE EXCEPTION 'a hold exists with another body';
    END IF;
    RETURN v_new;
END $$;

CREATE FUNCTION commit_batch(p_holds bigint[], p_actuals bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_new bigint;
BEGIN
    PERFORM FROM account WHERE id IN (SELECT payer FROM hold WHERE id = ANY (p_holds)) ORDER BY id FOR NO KEY UPDATE;
    WITH asked AS (
        SELECT * FROM unnest(p_holds, p_actuals) AS asked (id, actual)
    ), done AS (
        UPDATE hold SET committed = asked.actual FROM asked
            WHERE hold.id = asked.id AND hold.committed IS NULL AND hold.amount >= asked.actual
            RETURNING hold.id, hold.payer, asked.actual, hold.amount - asked.actual AS rest
    ), due AS (
        SELECT payer, sum(rest)::bigint AS rest FROM done GROUP BY payer HAVING sum(rest) > 0
    ), returned AS (
        UPDATE account SET available = account.available + due.rest FROM due WHERE account.id = due.payer
    ), written AS (
        INSERT INTO entry (hold, leg, payer, amount)
            SELECT id, leg 'earned', payer, actual FROM done
            UNION ALL SELECT id, leg 'returned', payer, rest FROM done WHERE rest > 0
    )
    SELECT count(*) FROM done INTO v_new;
    IF v_new <> cardinality(p_holds) AND EXISTS (
        SELECT FROM unnest(p_holds, p_actuals) AS asked (id, actual) LEFT JOIN hold USING (id)
            WHERE hold.committed IS DISTINCT FROM asked.actual
    ) THEN
        RAISE EXCEPTION 'a hold cannot be committed';
    END IF;
    RETURN v_new;
END $$;
