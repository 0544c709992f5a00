//! Whether a database is as this program needs it: for whoever is about to work with it, without changing anything.

use super::{ALL, DatabaseError, Lent};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

/// The roles of a program that puts obligations, delivers them, and is asked by operators.
pub const SETTLES: [&str; 3] = ["symphony_ingest", "symphony_executor", "symphony_admin"];
/// The role of a node of the engine on PostgreSQL.
pub const DECIDES: [&str; 1] = ["symphony_ledger"];

/// Which role is missing; none is the answer of one that may all.
const ROLES_MISSING: &str =
    "SELECT string_agg(role, ', ') FROM unnest($1) AS wanted (role) WHERE NOT pg_has_role(current_user, role, 'USAGE')";

/// Checks that the schema is the one of this program, and that the user may act as these roles.
///
/// # Errors
/// If it is missing, older or newer, or the user may not; or if the database does not answer.
pub async fn check(lent: &mut Lent<'_>, roles: &[&str]) -> Result<(), DatabaseError> {
    let needed = ALL.last().map_or(0, |migration| migration.version);
    let there =
        lent.query("SELECT to_regnamespace('holdfast') IS NOT NULL, to_regrole('symphony_ledger') IS NOT NULL", &[]);
    let row = there.await?.into_iter().next().ok_or_else(|| DatabaseError::Failed("no answer".to_owned()))?;
    if !row.try_get::<_, bool>(0)? || !row.try_get::<_, bool>(1)? {
        return Err(DatabaseError::SchemaOlder { found: 0, needed });
    }
    let roles = lent.query(ROLES_MISSING, &[(&roles, Type::TEXT_ARRAY)]).await?;
    if let Some(missing) = roles.first().and_then(|row| row.try_get::<_, Option<String>>(0).ok().flatten()) {
        return Err(DatabaseError::Forbidden(missing));
    }
    let found = match lent.query_raw("SELECT holdfast.schema_version()", &[]).await? {
        Ok(rows) => rows.first().map_or(Ok(0), |row| row.try_get(0))?,
        // Older than the function that says how old it is.
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_FUNCTION) => 0,
        Err(error) => return Err(error.into()),
    };
    match found {
        _ if found < needed => Err(DatabaseError::SchemaOlder { found, needed }),
        _ if found > needed => Err(DatabaseError::SchemaNewer { found, known: needed }),
        _ => Ok(()),
    }
}
