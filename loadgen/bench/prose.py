"""The text that prompts are made of. Common English words, so that most tokenizers have a token for each."""

PROSE = """
The old ferry left the harbour before the sun was over the hills, and the people on the deck watched the
lights of the town grow small behind them. A woman with a basket of bread sat near the window and told her
son about the island where her mother was born. There was a school there, she said, and a white church, and
a road that went along the water until it came to a garden with a stone wall. In the summer the whole
village worked in the fields, and in the winter they sat together in the evening and talked about the year
that was gone. The boy asked how long it would take to get there and whether they would see the great bridge
on the way. She laughed and said that the bridge was far to the north, but that from the top of the hill one
could see ships from every part of the world. When the wind turned, the captain called to his men, and they
pulled the heavy rope and let the big sail fall open. For a while nobody spoke. The water was dark and
clear, and deep below the surface a long shadow moved under the boat and was gone again. An old man who had
been reading a letter put it away and said that he had made this trip more than a hundred times, first as a
child, then as a soldier, and now as a doctor with a small black case. He had seen storms that broke the
mast like a match, and nights so still that the stars lay on the sea. The best part of a journey, he said,
is the hour before you arrive, when everything you hope for is still possible. Then the first houses came
out of the morning light, with red and blue doors, and smoke over the roofs, and a dog that ran along the
beach to meet them.
"""
