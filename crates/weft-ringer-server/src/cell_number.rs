//! The number of a cell, which distinguishes it from all others.

use weft_ringer::store::{CellStore, Transaction};
use weft_ringer_net::{Error, Result, fill_random};

/// The key of the cell's number, which has 8 bytes.
const CELL_KEY: &[u8] = b"x";

/// Returns the number of the cell, which is drawn when the cell is made.
pub(super) fn cell_number(store: &mut dyn CellStore) -> Result<u64> {
    if let Some(record) = store.get(CELL_KEY)? {
        let number = record.value.try_into().map(u64::from_be_bytes);
        return number.map_err(|_| Error::Store("the cell's number is damaged".into()));
    }
    let mut number = [0; 8];
    fill_random(&mut number).map_err(|e| Error::io("random numbers", e))?;
    // 0 stands for none.
    number[0] |= 1;
    let mut transaction = Transaction::default();
    transaction.put(CELL_KEY.to_vec(), number.to_vec());
    store.commit(&transaction)?;
    Ok(u64::from_be_bytes(number))
}
