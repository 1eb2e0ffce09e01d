//! Lists of parameters. Their length is part of the statement, so it is one of few: each is parsed once.

use sqlx::MySql;

use crate::sql::Sql;

/// A longer list is written into the statement: 65,535 parameters are the most.
const MOST: usize = 8_192;

pub(super) fn push_ids(sql: Sql<MySql>, ids: Vec<i64>) -> Sql<MySql> {
    match padded(ids) {
        Ok(ids) => push(sql, ids, |sql, id| sql.bind(id)),
        Err(ids) => push(sql, ids, |sql, id| sql.text(id)),
    }
}

pub(super) fn push_texts(sql: Sql<MySql>, texts: Vec<String>) -> Sql<MySql> {
    match padded(texts) {
        Ok(texts) => push(sql, texts, |sql, text| sql.bind(text)),
        Err(texts) => push(sql, texts, |sql, text| sql.text(format!("_utf8mb4 X'{}'", hex(&text)))),
    }
}

/// The last one is repeated until their number is a power of two.
fn padded<T: Clone>(mut values: Vec<T>) -> Result<Vec<T>, Vec<T>> {
    if values.len() > MOST {
        return Err(values);
    }
    if let Some(last) = values.last().cloned() {
        values.resize(values.len().next_power_of_two(), last);
    }
    Ok(values)
}

fn push<T>(sql: Sql<MySql>, values: Vec<T>, one: impl Fn(Sql<MySql>, T) -> Sql<MySql>) -> Sql<MySql> {
    let mut sql = sql.text(if values.is_empty() { " IN (NULL" } else { " IN (" });
    let mut before = "";
    for value in values {
        sql = one(sql.text(before), value);
        before = ", ";
    }
    sql.text(")")
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Now;

    #[test]
    fn lists_have_few_lengths_and_never_too_many_parameters() {
        assert_eq!(padded(vec![1, 2, 3, 4, 5]), Ok(vec![1, 2, 3, 4, 5, 5, 5, 5]));
        assert_eq!(padded(Vec::<i64>::new()), Ok(vec![]));
        assert_eq!(padded(vec![7; MOST]).map(|all| all.len()), Ok(MOST));
        assert!(padded(vec![7; MOST + 1]).is_err());
    }

    #[test]
    fn a_long_list_of_texts_cannot_break_out_of_its_statement() {
        let texts = std::iter::repeat_n("a'ä".to_owned(), MOST + 1).collect();
        let mut builder = push_texts(Sql::at(Now::Server), texts).into_builder();
        let sql = sqlx::Execute::sql(builder.build());
        assert!(sql.as_str().starts_with(" IN (_utf8mb4 X'6127c3a4', _utf8mb4 X'6127c3a4', "));
    }
}
