// SDR SDRAM at its pins: stores words, and notices commands that a real part may not take.
//
// All times are kept in clocks: those in ps are rounded up to whole periods. Nothing is delayed within a clock: dq changes
// with it. Not modelled: self refresh, power-down with commands, write bursts of one word (A9 of the mode register).
//
// A rule that is broken sets its bit of `broken`, until `clear`, and the command is done as far as it makes sense.

module sdram_model #(
    parameter PERIOD_PS = 10000,
    parameter ROW_BITS = 13,
    parameter COLUMN_BITS = 9,
    parameter STORED_ROW_BITS = 13,  // accesses of rows beyond break the rule STORED
    parameter BURST = 2,             // what the mode register has to be
    parameter CAS_LATENCY = 2,
    parameter POWER_UP_PS = 200000000,
    parameter RCD_PS = 20000,
    parameter RP_PS = 20000,
    parameter RAS_PS = 46000,
    parameter RC_PS = 67500,
    parameter RFC_PS = 70000,
    parameter RRD_PS = 15000,
    parameter WR_PS = 15000,
    parameter MRD = 2,               // clocks
    parameter REFI_PS = 7812500,     // 64 ms / 8192
    parameter POSTPONED = 1          // refreshes that may wait
) (
    input clk,
    input cke,
    input cs_n,
    input ras_n,
    input cas_n,
    input we_n,
    input [1:0] ba,
    input [ROW_BITS-1:0] a,
    input [1:0] dm,
    input [15:0] dq_i,
    output reg [15:0] dq_o,
    output reg [1:0] dq_oe,
    input off,                       // power is lost, and comes back
    input clear,                     // forget broken rules, counts, and refreshes that are behind
    output reg [15:0] broken,
    output reg [31:0] refreshes,
    output reg [31:0] activates,
    output reg [31:0] reads,
    output reg [31:0] writes
);
  // bits of `broken`; dram_board.py has their names
  localparam ORDER = 0;     // a command before the initialization allows it
  localparam RCD = 1;       // a read or write too early after its activate
  localparam RP = 2;        // a command too early after a precharge
  localparam RAS = 3;       // a precharge too early after its activate
  localparam RC = 4;        // an activate too early after another one of its bank
  localparam RFC = 5;       // a command too early after a refresh
  localparam RRD = 6;       // an activate too early after one of another bank
  localparam WR = 7;        // a precharge too early after the last written word
  localparam MRD_RULE = 8;  // a command too early after the mode register
  localparam CLOSED = 9;    // a read or write of a bank that is not open
  localparam OPEN = 10;     // an activate, refresh or mode register while a bank is open
  localparam REFRESH = 11;  // too few refreshes
  localparam MODE = 12;     // a mode register that is not as it has to be
  localparam BUS = 13;      // written words within a clock of read ones
  localparam STORED = 14;   // a row that is not stored here
  localparam UNKNOWN = 15;  // a command that is not modelled, or unknown pins

  localparam POWER_UP_CLOCKS = (POWER_UP_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam RCD_CLOCKS = (RCD_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam RP_CLOCKS = (RP_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam RAS_CLOCKS = (RAS_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam RC_CLOCKS = (RC_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam RFC_CLOCKS = (RFC_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam RRD_CLOCKS = (RRD_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam WR_CLOCKS = (WR_PS + PERIOD_PS - 1) / PERIOD_PS;
  localparam REFI_CLOCKS = REFI_PS / PERIOD_PS;
  localparam BANKS = 4;
  localparam LONG_AGO = 1 << 20;  // clocks; where time begins

  localparam [2:0] NOP = 7, ACTIVATE = 3, READ = 5, WRITE = 4, PRECHARGE = 2, AUTO_REFRESH = 1, LOAD_MODE = 0;

  reg [15:0] store[0:(1 << (STORED_ROW_BITS + 2 + COLUMN_BITS)) - 1];

  reg [31:0] now = LONG_AGO;
  reg cke_before = 0;
  reg precharged = 0, mode_set = 0;
  reg holds = 0;                        // a row was opened, so there may be content to refresh
  reg [3:0] refreshed = 0;
  reg [31:0] debt = 0;                  // clocks that refreshes are behind
  reg [31:0] last_refresh = 0, last_mode = 0, last_activate = 0;
  reg [BANKS-1:0] open = 0;
  reg [ROW_BITS-1:0] row[0:BANKS-1];
  reg [31:0] activated[0:BANKS-1];
  reg [31:0] closed[0:BANKS-1];         // when the precharge began, which may lie ahead
  reg [31:0] written[0:BANKS-1];        // last word

  // the burst under way
  reg reading = 0, writing = 0, auto = 0;
  reg [3:0] left = 0;
  reg [1:0] bank = 0;
  reg [COLUMN_BITS-1:0] column = 0;
  // words on their way out, the next one first
  reg [15:0] word[0:2];
  reg [2:0] word_valid = 0;
  reg [1:0] dm_before = 0;
  reg was_out = 0;

  integer k;
  reg is_ready;
  reg [2:0] command;
  reg [15:0] found;

  initial begin
    for (k = 0; k < BANKS; k = k + 1) begin
      row[k] = 0;
      activated[k] = 0;
      closed[k] = 0;
      written[k] = 0;
    end
    for (k = 0; k < 3; k = k + 1) word[k] = 0;
    {broken, refreshes, activates, reads, writes, dq_o, dq_oe} = 0;
  end

  function [31:0] place(input [1:0] of_bank, input [ROW_BITS-1:0] of_row, input [COLUMN_BITS-1:0] of_column);
    place = (((of_bank << STORED_ROW_BITS) | (of_row & ((1 << STORED_ROW_BITS) - 1))) << COLUMN_BITS) | of_column;
  endfunction

  // Bursts are sequential and stay within their block.
  function [COLUMN_BITS-1:0] next(input [COLUMN_BITS-1:0] from);
    next = (from & ~(BURST - 1)) | ((from + 1) & (BURST - 1));
  endfunction

  // Close a bank at a time: now, or later by itself.
  task close(input integer which, input [31:0] at);
    begin
      if (at - activated[which] < RAS_CLOCKS) found[RAS] = 1;
      if (at - written[which] < WR_CLOCKS) found[WR] = 1;
      closed[which] = at;
      open[which] = 0;
    end
  endtask

  task check_idle;  // all banks, for refresh and mode register
    begin
      if (open != 0) found[OPEN] = 1;
      for (k = 0; k < BANKS; k = k + 1)
        if ($signed(now - closed[k]) < RP_CLOCKS) found[RP] = 1;
    end
  endtask

  task begin_burst(input is_write);
    begin
      if (!is_ready) found[ORDER] = 1;
      if (!open[ba]) found[CLOSED] = 1;
      if (now - activated[ba] < RCD_CLOCKS) found[RCD] = 1;
      if (row[ba] >> STORED_ROW_BITS != 0) found[STORED] = 1;
      reading = !is_write;
      writing = is_write;
      left = BURST;
      bank = ba;
      column = a[COLUMN_BITS-1:0];
      auto = a[10];
      // The part closes the bank by itself after the burst, or after the time of the last written word.
      if (a[10]) begin
        if (is_write) written[ba] = now + BURST - 1;
        close(ba, now + (is_write ? BURST - 1 + WR_CLOCKS : BURST));
      end
    end
  endtask

  always @(posedge clk) begin
    found = 0;
    command = cs_n ? NOP : {ras_n, cas_n, we_n};
    is_ready = precharged && mode_set && refreshed >= 2;
    if (cke === 1'bx || (cke_before && cke && ^{cs_n, ras_n, cas_n, we_n} === 1'bx)) found[UNKNOWN] = 1;
    if (!cke_before) command = NOP;
    else if (!cke && command != NOP) found[UNKNOWN] = 1;

    if (command != NOP) begin
      if (now - LONG_AGO < POWER_UP_CLOCKS) found[ORDER] = 1;
      if (last_refresh != 0 && now - last_refresh < RFC_CLOCKS) found[RFC] = 1;
      if (last_mode != 0 && now - last_mode < MRD) found[MRD_RULE] = 1;
    end
    case (command)
      NOP: ;
      ACTIVATE: begin
        holds = 1;
        if (!is_ready) found[ORDER] = 1;
        if (open[ba]) found[OPEN] = 1;
        if ($signed(now - closed[ba]) < RP_CLOCKS) found[RP] = 1;
        if (now - activated[ba] < RC_CLOCKS) found[RC] = 1;
        if (now - last_activate < RRD_CLOCKS) found[RRD] = 1;
        open[ba] = 1;
        row[ba] = a;
        activated[ba] = now;
        last_activate = now;
        activates = activates + 1;
      end
      READ: begin
        begin_burst(0);
        reads = reads + 1;
      end
      WRITE: begin
        begin_burst(1);
        if (was_out || dq_oe != 0 || word_valid != 0) found[BUS] = 1;
        word_valid = 0;
        writes = writes + 1;
      end
      PRECHARGE: begin
        for (k = 0; k < BANKS; k = k + 1)
          if (a[10] || k == ba) begin
            if (open[k]) close(k, now);
            if (bank == k) {reading, writing} = 0;
          end
        if (a[10]) precharged = 1;
      end
      AUTO_REFRESH: begin
        if (!precharged) found[ORDER] = 1;
        check_idle;
        if (refreshed != 15) refreshed = refreshed + 1;
        debt = debt > REFI_CLOCKS ? debt - REFI_CLOCKS : 0;
        last_refresh = now;
        refreshes = refreshes + 1;
      end
      LOAD_MODE: begin
        if (!precharged) found[ORDER] = 1;
        check_idle;
        if (ba != 0 || a != ((CAS_LATENCY << 4) | (BURST == 1 ? 0 : BURST == 2 ? 1 : BURST == 4 ? 2 : 3)))
          found[MODE] = 1;
        mode_set = 1;
        last_mode = now;
      end
      default: found[UNKNOWN] = 1;
    endcase

    // a word of a burst: written ones are at the pins, read ones go on their way
    for (k = 0; k < 2; k = k + 1) word[k] = word[k+1];
    word_valid = word_valid >> 1;
    if (reading && left != 0) begin
      word[CAS_LATENCY-1] = store[place(bank, row[bank], column)];
      word_valid[CAS_LATENCY-1] = 1;
    end
    if (writing && left != 0) begin
      if (^{dm, dq_i & {{8{~dm[1]}}, {8{~dm[0]}}}} === 1'bx) found[UNKNOWN] = 1;
      if (!dm[0]) store[place(bank, row[bank], column)][7:0] = dq_i[7:0];
      if (!dm[1]) store[place(bank, row[bank], column)][15:8] = dq_i[15:8];
      if (!auto) written[bank] = now;
    end
    if (left != 0) begin
      left = left - 1;
      column = next(column);
    end

    was_out <= dq_oe != 0;
    dq_o <= word[0];
    dq_oe <= word_valid[0] ? ~dm_before : 2'b00;
    dm_before <= dm;
    cke_before <= cke;

    if (holds) begin
      debt = debt + 1;
      if (debt > (POSTPONED + 1) * REFI_CLOCKS) found[REFRESH] = 1;
    end
    broken <= (clear ? 16'b0 : broken) | found;
    if (clear) {refreshes, activates, reads, writes, debt} = 0;
    now = now + 1;
    if (off) begin
      now = LONG_AGO;
      {precharged, mode_set, holds, refreshed, open, reading, writing, word_valid} = 0;
      {debt, last_refresh, last_mode, last_activate} = 0;
      for (k = 0; k < BANKS; k = k + 1) {activated[k], closed[k], written[k]} = 0;
    end
  end
endmodule

// The same with one bus for data.
module sdram_chip #(
    parameter PERIOD_PS = 10000,
    parameter STORED_ROW_BITS = 13,
    parameter POWER_UP_PS = 200000000
) (
    input clk,
    input cke,
    input cs_n,
    input ras_n,
    input cas_n,
    input we_n,
    input [1:0] ba,
    input [12:0] a,
    input [1:0] dm,
    inout [15:0] dq,
    input clear,                     // forget broken rules, counts, and refreshes that are behind
    output [15:0] broken,
    output [31:0] refreshes,
    output [31:0] activates,
    output [31:0] reads,
    output [31:0] writes
);
  wire [15:0] out;
  wire [1:0] drive;
  assign dq[7:0] = drive[0] ? out[7:0] : 8'bz;
  assign dq[15:8] = drive[1] ? out[15:8] : 8'bz;
  sdram_model #(.PERIOD_PS(PERIOD_PS), .STORED_ROW_BITS(STORED_ROW_BITS), .POWER_UP_PS(POWER_UP_PS)) model(
      .clk(clk), .cke(cke), .cs_n(cs_n), .ras_n(ras_n), .cas_n(cas_n), .we_n(we_n), .ba(ba), .a(a), .dm(dm),
      .dq_i(dq), .dq_o(out), .dq_oe(drive), .off(1'b0), .clear(clear), .broken(broken), .refreshes(refreshes),
      .activates(activates), .reads(reads), .writes(writes));
endmodule
