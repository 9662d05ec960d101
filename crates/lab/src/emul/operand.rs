//! The memory operand of an instruction: ModRM, SIB and displacement (Intel's manual, volume 2,
//! "Instruction format").

/// No register.
const NONE: u8 = 16;

/// An address as an instruction names it, by the numbers that registers have in instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    base: u8,
    index: u8,
    /// log2 of what the index is multiplied by.
    scale: u8,
    displacement: i32,
}

impl Operand {
    /// Of the bytes that follow the operation, with the prefix of a 64-bit instruction (REX, 0 for
    /// none). `None` for a register, for an address that is relative to the instruction, and where
    /// bytes are missing.
    #[must_use]
    pub fn parse(rex: u8, bytes: &[u8]) -> Option<Self> {
        let (&mode, mut rest) = bytes.split_first()?;
        let (kind, low) = (mode >> 6, mode & 7);
        let high = |bit: u8| (rex >> bit & 1) << 3;
        let mut found = Self {
            base: low | high(0),
            index: NONE,
            scale: 0,
            displacement: 0,
        };
        let mut displaced = kind;
        if low == 4 {
            let (&sib, more) = rest.split_first()?;
            rest = more;
            (found.scale, found.base) = (sib >> 6, sib & 7 | high(0));
            // Number 4 is the stack pointer, which is no index.
            found.index = Some(sib >> 3 & 7 | high(1))
                .filter(|n| *n != 4)
                .unwrap_or(NONE);
            if sib & 7 == 5 && kind == 0 {
                (found.base, displaced) = (NONE, 2);
            }
        } else if low == 5 && kind == 0 {
            return None;
        }
        found.displacement = match displaced {
            0 => 0,
            1 => i8::from_le_bytes([*rest.first()?]).into(),
            2 => i32::from_le_bytes(*rest.first_chunk()?),
            _ => return None,
        };
        Some(found)
    }

    /// The address. `register` tells what a register has, by its number.
    pub fn address(self, register: impl Fn(u8) -> u64) -> u64 {
        let value = |number: u8| match number {
            NONE => 0,
            number => register(number),
        };
        let displacement = i64::from(self.displacement).cast_unsigned();
        let scaled = value(self.index) << self.scale;
        value(self.base)
            .wrapping_add(scaled)
            .wrapping_add(displacement)
    }

    /// The operand as one number.
    #[must_use]
    pub fn pack(self) -> u64 {
        let displacement = u64::from(self.displacement.cast_unsigned());
        let [base, index, scale] = [self.base, self.index, self.scale].map(u64::from);
        displacement << 32 | base << 16 | index << 8 | scale
    }

    /// The operand that was packed.
    #[must_use]
    pub fn unpack(packed: u64) -> Self {
        let [scale, index, base, _, displacement @ ..] = packed.to_le_bytes();
        Self {
            base,
            index,
            scale,
            displacement: i32::from_le_bytes(displacement),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Register `n` has `n << 32 | 0x1000 * n`.
    fn address(rex: u8, bytes: &[u8]) -> Option<u64> {
        let operand = Operand::parse(rex, bytes)?;
        assert_eq!(Operand::unpack(operand.pack()), operand);
        Some(operand.address(register))
    }

    fn register(n: u8) -> u64 {
        u64::from(n) << 32 | u64::from(n) << 12
    }

    #[test]
    fn operands_are_read_as_an_assembler_writes_them() {
        let r = register;
        for (rex, bytes, expected) in [
            // clflush (%rdi); 8(%rax); -8(%rbp); 0x12345678(%rbx); (%r9); -1(%r13).
            (0, &[0x3f][..], r(7)),
            (0, &[0x78, 8], r(0) + 8),
            (0, &[0x7d, 0xf8], r(5) - 8),
            (0, &[0xbb, 0x78, 0x56, 0x34, 0x12], r(3) + 0x1234_5678),
            (0x41, &[0x39], r(9)),
            (0x41, &[0x7d, 0xff], r(13) - 1),
            // (%rsp); (%rax,%rcx,4); 16(%r8,%r12,8); 0x100(,%rdx,2); 0x1000.
            (0, &[0x3c, 0x24], r(4)),
            (0, &[0x3c, 0x88], r(0) + 4 * r(1)),
            (0x43, &[0x7c, 0xe0, 16], r(8) + 8 * r(12) + 16),
            (0, &[0x3c, 0x55, 0, 1, 0, 0], 2 * r(2) + 0x100),
            (0, &[0x3c, 0x25, 0, 0x10, 0, 0], 0x1000),
        ] {
            assert_eq!(address(rex, bytes), Some(expected), "{bytes:x?}");
        }
        // A register (sfence), relative to the instruction, and cut off.
        for bytes in [&[0xf8][..], &[0x3d, 0, 0, 0, 0], &[0x3c], &[0x78], &[]] {
            assert_eq!(address(0, bytes), None, "{bytes:x?}");
        }
    }
}
