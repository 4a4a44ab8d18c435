//! The rights that a gateway needs at the database.
//!
//! Doc: records.md#stores

use std::collections::BTreeMap;

use super::OpenError;
use super::connect::Server;
use super::schema::TABLES;

/// Lists each right that the user of a connection lacks, and its object.
const LACKING: &str = "SELECT 'CREATE', 'the schema', 0::bigint
     WHERE NOT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
     UNION ALL SELECT 'USAGE', s.name, 1 FROM (VALUES ('writers_ordinal_seq'), ('queue_place_seq')) s(name)
     WHERE NOT has_sequence_privilege(to_regclass(s.name), 'USAGE')
     UNION ALL SELECT wanted.privilege, t.name, 1 + wanted.ordinality
     FROM unnest($1::text[]) t(name),
          unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY wanted(privilege)
     WHERE NOT has_table_privilege(to_regclass(t.name), wanted.privilege)
     ORDER BY 3, 2";

/// Returns the rights that a gateway needs and that the user of the URL lacks, such as `CREATE on the schema` or
/// `INSERT, UPDATE on events, writers`. Tables that do not exist yet are left out.
///
/// # Errors
/// [`OpenError::Url`], [`OpenError::Tls`], [`OpenError::Database`].
pub async fn missing_rights(url: &str) -> Result<Vec<String>, OpenError> {
    let connection = Server::parse(url)?.connect().await?;
    let tables: Vec<&str> = TABLES.to_vec();
    let mut by_object: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in connection.client.query(LACKING, &[&tables]).await? {
        by_object.entry(row.get(1)).or_default().push(row.get(0));
    }
    let mut by_rights: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (object, rights) in by_object {
        by_rights.entry(rights.join(", ")).or_default().push(object);
    }
    Ok(by_rights
        .into_iter()
        .map(|(rights, objects)| format!("{rights} on {}", objects.join(", ")))
        .collect())
}
