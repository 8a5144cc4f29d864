//! An instruction by its name, as Python hands it over.

use pfo::Instruction;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

/// The names as the interpreter keeps them: those in a program's source are the same objects, so
/// that most calls compare pointers only.
static NAMES: PyOnceLock<[Py<PyString>; Instruction::ALL.len()]> = PyOnceLock::new();

/// The instruction with this name. Any other name is `other` and logged once: a typing error must
/// not end a training.
pub(crate) fn named(name: &Bound<'_, PyString>) -> PyResult<Instruction> {
    let py = name.py();
    let names = NAMES.get_or_init(py, || {
        Instruction::ALL.map(|instruction| PyString::intern(py, instruction.name()).unbind())
    });
    if let Some(number) = names.iter().position(|known| known.is(name)) {
        return Ok(Instruction::ALL[number]);
    }
    if let Ok(instruction) = name.to_cow()?.parse::<Instruction>() {
        return Ok(instruction);
    }
    py.import("pfo.instruction")?.call_method1("report_unknown", (name,))?;
    Ok(Instruction::Other)
}
