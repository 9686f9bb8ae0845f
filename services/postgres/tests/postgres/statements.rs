//! What statements return, and the statements that connections keep.

use pikake::postgres::{Connection, Error};

use crate::{config, run, server};

async fn prepared(connection: &Connection) -> i64 {
    let count = "SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql AND statement LIKE '%kept%'";
    let rows = connection.simple_query(count).await.unwrap();
    let row = rows.iter().find_map(|message| match message {
        pikake::postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    row.unwrap().parse().unwrap()
}

#[test]
fn statements_return_rows_and_counts() {
    let Some(server) = server() else { return };
    run(async {
        let connection = config(server, "rows").connect().await.unwrap();
        let create = "CREATE TEMP TABLE item (name TEXT, price INTEGER); \
                      INSERT INTO item VALUES ('tea', 3), ('jam', 4)";
        connection.batch_execute(create).await.unwrap();
        let rows = connection.query("SELECT name FROM item ORDER BY name", &[]).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<&str>>(), ["jam", "tea"]);
        let price = "SELECT price FROM item WHERE name = $1";
        assert_eq!(connection.query_one(price, &[&"tea"]).await.unwrap().get::<_, i32>(0), 3);
        assert!(connection.query_opt(price, &[&"rum"]).await.unwrap().is_none());
        assert!(matches!(connection.query_one(price, &[&"rum"]).await, Err(Error::Statement(_))));
        let changed =
            connection.execute("UPDATE item SET price = price + $1", &[&1]).await.unwrap();
        assert_eq!(changed, 2);
        let error = connection.query("SELECT nonsense", &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42703");
        assert!(error.to_string().contains("nonsense"), "{error}");
    });
}

#[test]
fn rows_arrive_one_by_one() {
    let Some(server) = server() else { return };
    run(async {
        let connection = config(server, "stream").connect().await.unwrap();
        let text = "SELECT generate_series(1, $1::INTEGER)";
        let mut rows = connection.query_rows(text, &[&100_000]).await.unwrap();
        let mut sum = 0;
        while let Some(row) = rows.next().await.unwrap() {
            sum += i64::from(row.get::<_, i32>(0));
        }
        assert_eq!(sum, 5_000_050_000);
        assert!(rows.next().await.unwrap().is_none(), "the end stays");
        drop(rows);

        // Far more rows than the sockets hold: the server would not end this by itself.
        let mut rows = connection.query_rows(text, &[&i32::MAX]).await.unwrap();
        assert!(rows.next().await.unwrap().is_some());
        drop(rows);
        assert_eq!(connection.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
    });
}

#[test]
fn connection_prepares_each_text_once() {
    let Some(server) = server() else { return };
    run(async {
        let connection = config(server, "cache").statement_cache(2).connect().await.unwrap();
        for text in ["SELECT 1 AS kept", "SELECT 2 AS kept", "SELECT 1 AS kept"] {
            connection.query(text, &[]).await.unwrap();
        }
        assert_eq!((connection.cached_statements(), prepared(&connection).await), (2, 2));
        connection.query("SELECT 3 AS kept", &[]).await.unwrap();
        assert_eq!((connection.cached_statements(), prepared(&connection).await), (2, 2));
        let texts =
            "SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%kept' ORDER BY 1";
        let left = connection.client().query(texts, &[]).await.unwrap();
        let left: Vec<&str> = left.iter().map(|row| row.get(0)).collect();
        assert_eq!(left, ["SELECT 1 AS kept", "SELECT 3 AS kept"], "2 was used longest ago");

        let none = config(server, "cache").statement_cache(0).connect().await.unwrap();
        none.query("SELECT 1 AS kept", &[]).await.unwrap();
        assert_eq!((none.cached_statements(), prepared(&none).await), (0, 0));
    });
}

#[test]
fn statements_survive_changes_of_their_tables() {
    let Some(server) = server() else { return };
    run(async {
        let mut connection = config(server, "ddl").connect().await.unwrap();
        let text = "SELECT * FROM changing";
        connection.batch_execute("CREATE TEMP TABLE changing (a INTEGER)").await.unwrap();
        connection.batch_execute("INSERT INTO changing VALUES (1)").await.unwrap();
        assert_eq!(connection.query_one(text, &[]).await.unwrap().len(), 1);
        connection.batch_execute("ALTER TABLE changing ADD b INTEGER").await.unwrap();
        assert_eq!(connection.query_one(text, &[]).await.unwrap().len(), 2);

        // The server has forgotten all of them.
        connection.batch_execute("DEALLOCATE ALL").await.unwrap();
        assert_eq!(connection.query_one(text, &[]).await.unwrap().len(), 2);

        // In a transaction nothing can be repeated; the next one is good again.
        connection.batch_execute("ALTER TABLE changing ADD c INTEGER").await.unwrap();
        let transaction = connection.transaction().await.unwrap();
        let error = transaction.query_one(text, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "0A000");
        drop(transaction);
        let transaction = connection.transaction().await.unwrap();
        assert_eq!(transaction.query_one(text, &[]).await.unwrap().len(), 3);
    });
}

#[test]
fn type_made_anew_is_found() {
    let Some(server) = server() else { return };
    run(async {
        let connection = config(server, "retyped").connect().await.unwrap();
        // The driver encodes text for types of this name.
        let create = "CREATE TYPE citext AS ENUM ('a')";
        let schema = "DROP SCHEMA IF EXISTS retyped CASCADE; CREATE SCHEMA retyped; SET search_path = retyped";
        connection.batch_execute(&format!("{schema}; {create}")).await.unwrap();
        for _ in 0..2 {
            let row = connection.query_one("SELECT $1::citext::TEXT", &[&"a"]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), "a");
            connection.batch_execute(&format!("DROP TYPE citext; {create}")).await.unwrap();
        }
    });
}

#[test]
fn statement_that_cannot_be_sent_spares_the_connection() {
    let Some(server) = server() else { return };
    run(async {
        let connection = config(server, "zero").connect().await.unwrap();
        let error = connection.batch_execute("SELECT 'a\0b'").await.unwrap_err();
        assert!(matches!(error, Error::Statement(_)), "{error:?}");
        connection.query("SELECT 1", &[]).await.unwrap();
    });
}
