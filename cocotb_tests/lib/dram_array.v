// Words of the DRAM model. `load` reads FILE.load, hexadecimal words at @addresses; `dump` writes words `first` to `last`
// to FILE.dump: content never goes through the bus.
module kvo_dram_array #(
  parameter WORDS = 16,
  parameter ADDR_BITS = 4,
  parameter BYTES = 4,
  parameter LOAD = "dram.load",
  parameter DUMP = "dram.dump"
) (
  input clk,
  input load,
  input dump,
  input [ADDR_BITS-1:0] first,
  input [ADDR_BITS-1:0] last,
  input w_en,
  input [ADDR_BITS-1:0] w_addr,
  input [8*BYTES-1:0] w_data,
  input [BYTES-1:0] w_strb,
  input [ADDR_BITS-1:0] r_addr,
  output [8*BYTES-1:0] r_data
);
  reg [8*BYTES-1:0] words [0:WORDS-1];
  integer n;

  initial for (n = 0; n < WORDS; n = n + 1) words[n] = 0;

  assign r_data = words[r_addr];

  always @(posedge clk) begin
    if (w_en)
      for (n = 0; n < BYTES; n = n + 1)
        if (w_strb[n]) words[w_addr][8*n +: 8] <= w_data[8*n +: 8];
    if (load) $readmemh(LOAD, words);
    if (dump) $writememh(DUMP, words, first, last);
  end
endmodule
