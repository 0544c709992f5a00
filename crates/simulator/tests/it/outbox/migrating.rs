//! Migrations: once each, in order, whole or not at all.

use super::{World, connect};
use holdfast_adapters::postgres::{self, DatabaseError, Migration, Standing, migrate, plan};

/// How many there are.
const COUNT: usize = postgres::ALL.len();

fn standings(steps: &[postgres::Step]) -> Vec<Standing> {
    steps.iter().map(|step| step.standing).collect()
}

#[tokio::test]
async fn each_is_applied_once_however_often_and_by_how_many() {
    let world = World::bare().await;
    let url = world.server.url("postgres");
    let (mut one, mut other) = (connect(&url).await, connect(&url).await);
    assert_eq!(standings(&plan(&mut one, &postgres::ALL).await.unwrap()), [Standing::Missing; COUNT]);
    let (first, second) = tokio::join!(migrate(&mut one, &postgres::ALL), migrate(&mut other, &postgres::ALL));
    let (first, second) = (standings(&first.unwrap()), standings(&second.unwrap()));
    let by_one = |steps: &[Standing]| steps.iter().filter(|standing| **standing == Standing::Applied).count();
    assert_eq!(by_one(&first) + by_one(&second), COUNT, "{first:?} {second:?}");
    assert_eq!(standings(&migrate(&mut one, &postgres::ALL).await.unwrap()), [Standing::There; COUNT]);
    assert_eq!(world.value("SELECT count(*) FROM holdfast.schema_migrations").await, COUNT.to_string());

    // A second database of the same server finds the roles there.
    world.run("CREATE DATABASE second").await;
    let mut second = connect(&world.server.url("second")).await;
    assert_eq!(standings(&migrate(&mut second, &postgres::ALL).await.unwrap()), [Standing::Applied; COUNT]);
}

#[tokio::test]
async fn what_was_changed_or_is_newer_is_refused_and_what_fails_leaves_nothing() {
    let mut world = World::bare().await;
    let broken = Migration { version: 3, name: "broken", sql: "CREATE TABLE holdfast.half (); SELECT 1 / 0" };
    let three = [postgres::ALL[0], postgres::ALL[1], broken];
    let failed = migrate(&mut world.admin, &three).await.unwrap_err();
    assert!(matches!(&failed, DatabaseError::MigrationFailed { version: 3, .. }), "{failed}");
    assert!(failed.to_string().contains("22012 division by zero"), "{failed}");
    assert_eq!(world.value("SELECT to_regclass('holdfast.half') IS NULL").await, "t");
    assert_eq!(world.value("SELECT max(version) FROM holdfast.schema_migrations").await, "2");

    migrate(&mut world.admin, &postgres::ALL).await.unwrap();
    let mut changed = postgres::ALL;
    changed[1].sql = "SELECT 1";
    let refused = migrate(&mut world.admin, &changed).await.unwrap_err();
    assert_eq!(refused.code(), "MIGRATION_CHANGED");
    let refused = migrate(&mut world.admin, &postgres::ALL[..COUNT - 1]).await.unwrap_err();
    assert_eq!(refused.code(), "SCHEMA_NEWER");
    assert_eq!(plan(&mut world.admin, &postgres::ALL[..COUNT - 1]).await.unwrap_err().code(), "SCHEMA_NEWER");
    assert_eq!(world.value("SELECT count(*) FROM holdfast.schema_migrations").await, COUNT.to_string());
}

#[tokio::test]
async fn a_role_that_is_no_superuser_can_migrate_and_a_too_strong_owner_is_refused() {
    let world = World::bare().await;
    world.run("CREATE ROLE migrator LOGIN CREATEROLE; GRANT CREATE ON DATABASE postgres TO migrator").await;
    let mut migrator = connect(&world.server.url_as("migrator", "postgres")).await;
    assert_eq!(standings(&migrate(&mut migrator, &postgres::ALL).await.unwrap()), [Standing::Applied; COUNT]);
    let strong = "SELECT count(*) FROM pg_proc JOIN pg_roles ON pg_roles.oid = proowner \
                  WHERE pronamespace = 'holdfast'::regnamespace AND rolname <> 'symphony_owner'";
    assert_eq!(world.value(strong).await, "0");

    let world = World::bare().await;
    world.run("CREATE ROLE symphony_owner LOGIN").await;
    let mut admin = connect(&world.server.url("postgres")).await;
    let refused = migrate(&mut admin, &postgres::ALL).await.unwrap_err();
    assert!(refused.to_string().contains("may do more than it should"), "{refused}");
}

#[test]
fn an_address_that_is_none_is_refused_without_repeating_its_password() {
    let refused = postgres::Database::at("postgres://me:secret@host:port/db", None).err().unwrap();
    assert_eq!(refused.code(), "DATABASE_URL_INVALID");
    assert!(!refused.to_string().contains("secret"), "{refused}");
}
